"""Config files out of hostile hands: a plan or a sentence, soon, and nothing written but below results/."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest
import yaml
from hostile import FUZZ, SHELL, edited, edits, files_below, names, refused_in_words
from hypothesis import given
from hypothesis import strategies as st
from kvfrontier.errors import KVFrontierError
from kvfrontier.plan.disk import prepare
from kvfrontier.plan.project import Project

CONFIG = Path(__file__).parents[2] / "config"
CAMPAIGN = """
name: trial
device: h100
repeats: 2
timeout_s: 5.5
max_attempts: 2
shard: {max_cells: 3}
axes:
  model: [toy, Qwen/Qwen3-8B]
  engine: [{name: simulator, dtype: [float32, bfloat16]}]
  strategy: [full, streaming_llm, {name: h2o, recent_share: 0.5}]
  strategy.budget: [0.1, 64]
  workload:
    - {name: speed, text: generated, context_tokens: 64, output_tokens: 8}
  seed: [0, 1]
zip:
  - {workload.batch_size: [1, 2], workload.context_tokens: [64, 128]}
constraints:
  - drop: {strategy: h2o, strategy.budget: {gt: 10}}
  - require: {workload.batch_size: [1, 2]}
    when: {model: toy}
"""
SHAPE = "{layers: 2, q_heads: 4, kv_heads: 2, head_dim: 16, hidden: 64, vocab: 97, max_positions: 2048, parameters: 9}"
FILES = {
    "campaigns/trial.yaml": CAMPAIGN,
    "models.yaml": f"toy: {{shape: {SHAPE}}}\nQwen/Qwen3-8B: {{shape: {SHAPE}}}\n"
    + (CONFIG / "models.yaml").read_text(),
    "devices.yaml": (CONFIG / "devices.yaml").read_text(),
    "data.yaml": (CONFIG / "data.yaml").read_text(),
    "config.yaml": (CONFIG / "config.yaml").read_text().replace("campaign: default", "campaign: trial"),
}


class Checkout:
    """A project in a folder of its own, inside another one that must stay as it is."""

    def __init__(self, root: Path):
        self.outside = root
        self.root = root / "checkout"

    def plan(self, file: str = "", content: bytes = b"") -> None:
        """Plan with one of FILES replaced; asserts that only results/ was written to."""
        for name, text in FILES.items():
            path = self.root / "config" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if name == file else text.encode())
        before = files_below(self.outside)
        with refused_in_words():
            prepare(Project.at(self.root, "results"), "trial" if file != "config.yaml" else None)
        written = {path for path, data in files_below(self.outside).items() if before.get(path) != data}
        assert all(path.is_relative_to(self.root / "results") for path in written), written


@pytest.fixture(scope="module")
def checkout():
    with tempfile.TemporaryDirectory() as folder:
        yield Checkout(Path(folder))


def dumped(document) -> bytes:
    return yaml.dump(document, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True).encode(
        errors="surrogatepass"
    )


@FUZZ
@given(st.sampled_from(sorted(FILES)), edits)
def test_wrong_values_anywhere(checkout, file, changes):
    checkout.plan(file, dumped(edited(yaml.safe_load(FILES[file]), changes)))


lines = st.sampled_from(
    [
        "---",
        "...",
        "\t",
        "- ",
        "? [a]",
        "<<: *a",
        "a: &a [*a]",
        "!!python/name:os.system",
        '"\\0"',
        "%YAML 9.9",
        "{{",
        "[" * 90,
    ]
)


@FUZZ
@given(
    st.integers(0, 60), st.one_of(lines, names), st.booleans(), st.sampled_from(["\n", "\r\n", "\r", "\x85", "\u2028"])
)
def test_lines_out_of_place(checkout, place, line, is_added, end):
    text = CAMPAIGN.splitlines()
    place %= len(text)
    text[place : place + (not is_added)] = [line]
    checkout.plan("campaigns/trial.yaml", end.join(text).encode(errors="surrogatepass"))


@FUZZ
@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4),
    st.sampled_from(sorted(FILES)),
)
def test_bytes_that_are_others(checkout, changes, file):
    content = bytearray(FILES[file].encode())
    for place, byte in changes:
        content[place % len(content)] = byte
    checkout.plan(file, bytes(content))


MANY = f"[{', '.join(map(str, range(1, 1001)))}]"
LAUGHS = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 14))
MERGES = "".join(f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}\n" for level in range(1, 14))
SPEED = "{name: speed, text: generated, context_tokens: 64, output_tokens: 8}"
ZIPS = "".join(
    f"  - {{{path}: {MANY}}}\n"
    for path in ("workload.batch_size", "workload.warmup_output_tokens", "strategy.num_sinks")
)
BOMBS = {
    "a billion laughs": (f"a0: &a0 [x, x]\n{LAUGHS}{CAMPAIGN}", "a known key"),
    "a billion merges": (f"a0: &a0 {{x: 1}}\n{MERGES}{CAMPAIGN}", "a known key"),
    "an alias of itself": (f"a: &a {{<<: *a}}\n{CAMPAIGN}", "an alias inside itself"),
    "brackets": (f"axes: {'[' * 3000}{']' * 3000}\n", "nested too deeply"),
    "indents": ("".join(f"{' ' * level}a:\n" for level in range(700)), "nested too deeply"),
    "megabytes": (f"# {'x' * 2**20}\n{CAMPAIGN}", "at most 1,048,576"),
    "a product of axes": (CAMPAIGN.replace("seed: [0, 1]", f"seed: {MANY}\n  strategy.num_sinks: {MANY}"), "1,000,000"),
    "a product in an entry": (
        CAMPAIGN.replace(SPEED, f"{{name: speed, output_tokens: {MANY}, warmup_output_tokens: {MANY}}}"),
        "at most 1,000,000",
    ),
    "a product of zips": (CAMPAIGN.split("zip:")[0] + f"zip:\n{ZIPS}", "at most 1,000,000"),
    "a tag that calls": (f"axes: !!python/object/apply:os.system ['{SHELL}']\n", "could not determine a constructor"),
    "a tag by another name": (
        f"%TAG !y! tag:yaml.org,2002:python/\n---\naxes: !y!object/apply:os.system ['{SHELL}']\n",
        "could not determine a constructor",
    ),
    "a merge of text": (f"<<: text\n{CAMPAIGN}", "expected a mapping"),
    "half a character": (CAMPAIGN.replace("name: trial", 'description: "\\ud800"'), "the control character 0xd800"),
    "an escape sequence": (CAMPAIGN.replace("name: trial", 'description: "\\e[31m"'), "the control character 0x1b"),
    "no such character": (CAMPAIGN.replace("name: trial", 'description: "\\U00110000"'), "not in range"),
    "a line break in a name": (CAMPAIGN.replace("name: trial", 'name: "trial\\n"'), "letters, digits, . _ -"),
    "no key": (f'"": 1\n{CAMPAIGN}', "got the key ''"),
    "a bracket in a key": (f'"a[": 1\n{CAMPAIGN}', "a known key"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_before_it_goes_off(checkout, text, words):
    checkout.plan("campaigns/trial.yaml", text.encode())
    with refused_in_words(), pytest.raises(KVFrontierError, match=re.escape(words)):
        prepare(Project.at(checkout.root, "results"), "trial")


def test_a_key_with_brackets_in_a_catalog_is_placed(checkout):
    checkout.plan("models.yaml", b'toy: {"a[": 1}\n')


@pytest.mark.parametrize("file", sorted(FILES))
def test_folders_pipes_and_links_in_place_of_files(tmp_path, file):
    checkout = Checkout(tmp_path)
    checkout.plan()
    path = checkout.root / "config" / file
    for make in (
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("/dev/zero"),
    ):
        path.unlink() if not path.is_dir() else path.rmdir()
        make(path)
        with refused_in_words():
            prepare(Project.at(checkout.root, "results"), "trial")
