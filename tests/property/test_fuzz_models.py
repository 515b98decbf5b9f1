"""Models out of hostile hands: refused in words, no code is run, no pickle is opened, nothing outside is read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import safetensors
import torch
from hostile import CANARY, FUZZ, SHELL, edited, edits, refused_in_words
from hypothesis import given
from hypothesis import strategies as st
from kvfrontier.errors import KVFrontierError
from kvfrontier.models.convert import convert_gguf
from kvfrontier.models.loader import load_model
from kvfrontier.models.vetted import Loading
from kvfrontier.plan.catalog import load_models
from kvfrontier.plan.device import Device
from kvfrontier.plan.model import Model, ModelSpec
from kvfrontier.plan.project import Project
from tiny import tiny_llama
from toy_tokenizer import toy_tokenizer

CODE = f"import os\nos.system({SHELL!r})\nfrom transformers import LlamaForCausalLM as M, LlamaConfig as C\nT = C\n"
REMOTE = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
PICKLES = (
    "pytorch_model.bin", "model.bin", "adapter_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt",
    "rng_state.pth", "consolidated.00.pth", "model.ckpt", "model.pkl", "vocab.pkl", "tokenizer.pkl", "model.npy",
    "tokenizer.model", "spiece.model", "flax_model.msgpack", "tf_model.h5", "generation_config.bin",
)  # fmt: skip


class Evil:
    """Runs a command in whoever unpickles it."""

    def __reduce__(self):
        return os.system, (SHELL,)


def test_the_canary_sings():
    pickle.loads(pickle.dumps(Evil()))
    assert CANARY.exists(), "the tests below prove nothing"
    CANARY.unlink()


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A model with its tokenizer, and the code and the pickles of a stranger beside it."""
    folder = tmp_path_factory.mktemp("models") / "sound"
    tiny_llama().save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    (folder / "evil.py").write_text(CODE)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE)
    for number, name in enumerate(PICKLES):
        with (folder / name).open("wb") as file:
            pickle.dump(Evil(), file) if number % 2 else torch.save({"lm_head.weight": Evil()}, file)
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / "model"))


def change(folder: Path, file: str = "config.json", **changes) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def config(**changes):
    return lambda folder: change(folder, **changes)


def load(folder: Path):
    try:
        return load_model(
            Model(ModelSpec("toy"), source="folder", location=str(folder)), Device("cpu", "cpu"), "float32"
        )
    finally:
        assert not CANARY.exists(), "code of the model was run"


def test_pickles_and_code_beside_a_model_are_not_touched(folder):
    model, _ = load(folder)
    assert model.lm_head.weight.shape == (97, 48)


def index_to(name: object):
    def make(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        weights = {"weight_map": {"lm_head.weight": name, "model.norm.weight": "model-1.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(weights))

    return make


EVIL_TOKENIZER = {"tokenizer_class": "E", "auto_map": {"AutoTokenizer": ["evil.T", None]}}


def link_to(target: str):
    def make(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to(target)

    return make


def without_tokenizer(folder: Path) -> None:
    for path in (*folder.glob("tokenizer*"), folder / "spiece.model"):
        path.unlink()


def a_pickle_as_weights(folder: Path) -> None:
    shutil.copy(folder / "pytorch_model.bin", folder / "model.safetensors")


ATTACKS = {
    "code for an unknown kind": (config(model_type="evil", auto_map=REMOTE), "custom code"),
    "trust in itself": (config(model_type="evil", auto_map=REMOTE, trust_remote_code=True), "custom code"),
    "code for a tokenizer": (lambda folder: change(folder, "tokenizer_config.json", **EVIL_TOKENIZER), "custom code"),
    "attention from the hub": (config(_attn_implementation="evil/kernels"), "code from the hub"),
    "a pickle as its weights": (config(transformers_weights="adapter_model.bin"), "another file of weights"),
    "an index to a pickle": (index_to("pytorch_model.bin"), "Its index names 'pytorch_model.bin'"),
    "an index out of the folder": (index_to("../../x.safetensors"), r"Its index names '\.\./\.\./x\.safetensors'"),
    "an index to the root": (index_to("/etc/passwd"), "Its index names '/etc/passwd'"),
    "an index to a number": (index_to(3), r"a readable model\.safetensors\.index\.json"),
    "an index to a list": (index_to([]), r"a readable model\.safetensors\.index\.json"),
    "an adapter": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "Merge it into the weights"),
    "a pickle by another name": (a_pickle_as_weights, "no whole safetensors file"),
    "a link to another file": (link_to("/etc/passwd"), "no whole safetensors file"),
    "a link to itself": (link_to("model.safetensors"), "no whole safetensors file"),
    "no tokenizer": (without_tokenizer, "holds no tokenizer"),
    "heads of another size": (config(head_dim=32), r"k_proj\.weight is 32 x 48, .* 64 x 48"),
    "more layers than weights": (config(num_hidden_layers=5), "the weights lack 27 tensors"),
    "a tokenizer of nothing": (
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        "cannot be loaded: KeyError",
    ),
    "a config too deep": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "cannot be read"),
    "an unknown activation": (config(hidden_act="evil"), "cannot be loaded: KeyError: 'evil'"),
    "a type that is a call": (config(dtype="os.system"), "cannot be loaded: AttributeError"),
}


@pytest.mark.parametrize(("attack", "words"), ATTACKS.values(), ids=ATTACKS)
def test_a_hostile_model_is_refused_in_words(folder, attack, words):
    attack(folder)
    with pytest.raises(KVFrontierError, match=words) as caught:
        load(folder)
    assert len(str(caught.value)) < 1000


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 48, "vocab_size": 97, "max_position_embeddings": 2048,
    "auto_map": REMOTE, "text_config": None, "_name_or_path": "../../x",
}  # fmt: skip
HEADER = {"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}, "__metadata__": {"format": "pt"}}


class Planned:
    """A project whose one model is a folder; `read` is what the plan does with it."""

    def __init__(self, root: Path):
        self.root, self.folder = root, root / "model"
        self.folder.mkdir()
        (root / "config").mkdir()
        (root / "config" / "models.yaml").write_text("toy: {folder: model}\n")
        self.write()

    def write(self, config: object = CONFIG, weights: bytes | None = None) -> None:
        (self.folder / "config.json").write_text(json.dumps(config))
        (self.folder / "model.safetensors").write_bytes(with_header(HEADER) if weights is None else weights)

    def read(self) -> Model | None:
        with refused_in_words():
            return load_models(Project.at(self.root))["toy"]


def with_header(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return Planned(tmp_path_factory.mktemp("planned"))


@FUZZ
@given(edits)
def test_a_config_of_any_values_is_a_shape_or_a_sentence(planned, changes):
    planned.write(edited(CONFIG, changes))
    planned.read()


@pytest.mark.parametrize(
    "raw", [b"", b"\0", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 10_000, b'{"hidden_size": 1e999}']
)
def test_a_config_of_any_bytes_is_a_sentence(planned, raw):
    planned.write()
    assert planned.read()
    (planned.folder / "config.json").write_bytes(raw)
    assert planned.read() is None


@FUZZ
@given(edits)
def test_a_header_of_any_values_is_whole_or_refused(planned, changes):
    planned.write(weights=with_header(edited(HEADER, changes)))
    planned.read()


@FUZZ
@given(st.integers(0, 300), st.integers(0, 255), st.sampled_from([0, 1, 10**8 + 1, 2**63, 2**64 - 1, None]))
def test_weights_of_any_bytes_are_whole_or_refused(planned, place, byte, length):
    data = bytearray(with_header(HEADER))
    data[place % len(data)] = byte
    if length is not None:
        data[:8] = length.to_bytes(8, "little")
    planned.write(weights=bytes(data))
    if planned.read():
        with safetensors.safe_open(planned.folder / "model.safetensors", framework="np") as file:
            assert {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118 (no mapping)


def a_gguf(path: Path) -> bytes:
    """A Llama of one layer in GGUF."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1), writer.add_context_length(64), writer.add_embedding_length(32)
    writer.add_feed_forward_length(32), writer.add_head_count(2), writer.add_head_count_kv(2), writer.add_vocab_size(32)
    writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_dimension_count(16), writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(chr(97 + number) for number in range(26)), "ab", "cd", "ef"])
    writer.add_token_types([1] * 32), writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1), writer.add_eos_token_id(2)
    layers = [
        f"blk.0.{name}" for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ]
    for name in ("token_embd", "output", *layers):
        writer.add_tensor(f"{name}.weight", np.ones((32, 32), np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    return path.read_bytes()


@pytest.mark.parametrize("cut", [0, 3, 20, 700, 1800, 5000, -1])
def test_a_damaged_gguf_is_refused_in_words(tmp_path, cut):
    path = tmp_path / "model.gguf"
    path.write_bytes(a_gguf(path)[:cut])
    with (
        pytest.raises(KVFrontierError, match=r"model\.gguf cannot be loaded: "),
        contextlib.redirect_stderr(io.StringIO()),
        Loading("model.gguf"),
    ):
        convert_gguf(path, tmp_path / "out", ModelSpec("toy", layers=1))
    assert not (tmp_path / "out").exists()


def test_a_whole_gguf_is_converted(tmp_path):
    path = tmp_path / "model.gguf"
    a_gguf(path)
    convert_gguf(path, tmp_path / "out", ModelSpec("toy", layers=1, q_heads=2))
    assert (tmp_path / "out" / "model.safetensors").is_file()
