"""Traces of requests: which files are read, what is said of others, and when a change makes cells stale."""

from __future__ import annotations

import pytest
from kvfrontier.errors import ConfigError
from kvfrontier.plan.catalog import load_data
from kvfrontier.plan.trace import read_trace

OURS = "arrival_s,context_tokens,output_tokens\n10,7,3\n11.5,200,1\n"
WHEEL = f"requirement: a==1, sha256: {'ab' * 32}, size_bytes: 10"
CAMPAIGN = """
device: cpu
axes:
  model: [small]
  engine: [toy_engine]
  strategy: [toy_full]
  workload: [{name: toy_speed, context_tokens: 8}, {name: arrivals, trace: mine, text: generated}]
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mine.csv"


@pytest.mark.parametrize(
    "text",
    [
        OURS,
        "\ufeffoutput_tokens , arrival_s,id,context_tokens\n3,10,a,7\n1,11.5,b,200\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,7,3\n2023-11-16 18:17:05.4799600,200,1\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,7,3\n2024-05-10 02:00:01.509930+02:00,200,1\n",
        "arrival_s,context_tokens,output_tokens\n11.5,200,1\n10,7,3\n",
    ],
    ids=["seconds", "another order", "Azure 2023", "Azure 2024", "not sorted"],
)
def test_times_count_from_the_first_request(file, text):
    file.write_text(text, encoding="utf-8")
    (first, second) = read_trace(file)
    assert first == (0.0, 7, 3) and second[1:] == (200, 1)
    assert second.arrival_s == pytest.approx(1.5, abs=1e-5)


HEAD = "arrival_s,context_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "expected", "hint"),
    [
        ("", "a CSV file with a header", "mine.csv has the columns (none); arrival_s is missing."),
        ("arrival_s,context_token,output_tokens\n1,1,1\n", "the columns arrival_s, context_tokens, output_tokens or",
         "context_tokens is missing. Is it 'context_token'?"),
        ("TIMESTAMP,ContextTokens\n1,1\n", "TIMESTAMP, ContextTokens, GeneratedTokens", "GeneratedTokens is missing."),
        (HEAD, "at least one request", "mine.csv has a header alone."),
        (f"{HEAD}1,1,1\nsoon,1,1\n", "times in seconds", 'mine.csv, line 3: got "soon".'),
        (f"{HEAD}nan,1,1\n", "times in seconds", "line 2"),
        (f"{HEAD}1,0,1\n", "whole numbers of tokens, from 1", 'line 2: got "0".'),
        (f"{HEAD}1,5.5,1\n", "whole numbers of tokens", "line 2"),
        (f"{HEAD}1,5,{'9' * 30}\n", "whole numbers of tokens", "line 2"),
        (f"{HEAD}1,5\n", "whole numbers of tokens", "line 2: got ''."),
        (f'{HEAD}1,5,"7\n', "a CSV file with a header", "mine.csv is none"),
        (b"\xff\xfe\x00", "a CSV file with a header", "mine.csv is none"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_named(toys, text, expected, hint):
    (toys.root / "mine.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    toys.write("data.yaml", "mine: {trace: mine.csv}\n")
    with pytest.raises(ConfigError) as caught:
        load_data(toys.project)["mine"]
    (problem,) = caught.value.problems
    assert problem.file == "config/data.yaml:1" and problem.key == "mine.trace"
    assert expected in problem.expected and hint.replace('"', "'") in problem.hint.replace('"', "'"), problem


@pytest.mark.parametrize("path", ["gone.csv", "config", "~nobody-is-called-so/x.csv"])
def test_a_file_that_cannot_be_read_troubles_its_campaigns_alone(toys, path):
    toys.write("data.yaml", f"mine: {{trace: {path}}}\nother: {{{WHEEL}}}\n")
    sources = load_data(toys.project)
    assert list(sources) == ["mine", "other"] and sources["other"].requirement == "a==1"
    with pytest.raises(ConfigError, match=r"mine\.trace: got .*; expected a file that can be read"):
        sources["mine"]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("licence: none", "a `requirement` with `sha256` and `size_bytes`, or a `trace` alone"),
        (f"trace: mine.csv, {WHEEL}", "or a `trace` alone"),
        ("requirement: a==1", "also `sha256`, `size_bytes`"),
        ("trase: mine.csv", "Did you mean 'trace'"),
    ],
)
def test_an_entry_is_a_wheel_or_a_trace(toys, entry, expected):
    toys.write("data.yaml", f"mine: {{{entry}}}\n")
    with pytest.raises(ConfigError, match=expected):
        load_data(toys.project)


def test_a_changed_trace_makes_its_cells_stale_and_a_moved_one_does_not(toys, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_ROOT", str(toys.root))

    def fingerprint(text, path="mine.csv"):
        (toys.root / path).write_text(text)
        toys.write("data.yaml", f"mine: {{trace: {path}}}\n")
        (cell,) = (cell for cell in toys.plan(CAMPAIGN).cells if cell.cell.workload.name == "arrivals")
        assert cell.reason.endswith("schedule, text, which workload arrivals needs; engine vllm does")
        return cell.fingerprint

    before = fingerprint(OURS)
    assert fingerprint(OURS.replace("10,7,3", "10,8,3")) != before
    assert fingerprint(OURS.replace("11.5", "11.6")) != before
    assert fingerprint(OURS, "other.csv") == before
    assert fingerprint(OURS.replace("10,", "20,").replace("11.5,", "21.5,")) == before, "the same requests"


def test_an_unknown_trace_is_named_with_the_nearest_spelling(toys, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_ROOT", str(toys.root))
    (toys.root / "mine.csv").write_text(OURS)
    toys.write("data.yaml", "mine: {trace: mine.csv}\n")
    with pytest.raises(ConfigError, match=r"got 'mein'; expected a data source in config/data\.yaml: mine.*mine"):
        toys.plan(CAMPAIGN.replace("trace: mine", "trace: mein"))
