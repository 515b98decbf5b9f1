"""Names of models in file names: distinct, reversible, harmless, short enough."""

from __future__ import annotations

from kvfrontier.plan.names import bounded, decode_name, encode_name, receipt_name

AWKWARD = [
    "Qwen/Qwen3-8B",
    "a--b",
    "a/b",
    "a%2Fb",
    "..",
    ".",
    "../../etc/passwd",
    "-rf",
    "a b",
    "ü",
    "a\nb",
    "~",
    "$(x)",
    "A/b",
]


def test_awkward_names_are_distinct_reversible_and_harmless():
    encoded = [encode_name(name) for name in AWKWARD]
    assert len(set(encoded)) == len(AWKWARD)
    assert [decode_name(text) for text in encoded] == AWKWARD
    for text in encoded:
        assert not set(text) & set("/\\ $\n")
        assert text[0] not in ".-"


def test_a_long_name_is_cut_and_stays_distinct():
    names = ["x" * 300 + end for end in ("a", "b")]
    cut = [bounded(name, 180) for name in names]
    assert cut[0] != cut[1]
    assert all(len(name) == 180 for name in cut)


def test_receipts_of_any_names_are_legal_and_distinct():
    names = [*AWKWARD, "n" * 300, "n" * 299 + "m", "\U0001f600" * 60]
    receipts = [receipt_name(name) for name in names]
    assert len(set(receipts)) == len(names)
    assert max(len(f".{receipt}.log.12345.partial".encode()) for receipt in receipts) <= 255


def test_shards_of_awkward_models_are_legal_distinct_file_names(toys):
    names = ["Qwen/Qwen3-8B", "a--b", "a/b", "..", "m" * 250]
    shape = "{shape: {layers: 2, q_heads: 4, kv_heads: 2, head_dim: 16, hidden: 64, vocab: 97, max_positions: 2048}}"
    toys.write("models.yaml", "".join(f"{name!r}: {shape}\n" for name in names))
    plan = toys.plan(f"""
        device: cpu
        axes:
          {{model: {names}, engine: toy_engine, strategy: toy_full, workload: toy_speed, workload.context_tokens: 64}}
    """)  # fmt: skip
    assert [shard.model for shard in plan.shards] == names
    assert len({shard.name for shard in plan.shards}) == len(names)
    for shard in plan.shards:
        assert len(f"{shard.name}.json.12345.partial".encode()) <= 255
        assert "/" not in shard.name
        assert not shard.name.startswith((".", "-"))
    assert plan.shards[0].name.startswith("Qwen%2FQwen3-8B.toy_engine.cpu.000-")


def test_a_shard_is_named_by_its_content(toys):
    from toy_project import CAMPAIGN

    first = toys.plan(CAMPAIGN).shards[0]
    assert toys.plan(CAMPAIGN.replace("[toy_full, toy_h2o]", "[toy_h2o, toy_full]")).shards[0].name == first.name
    assert toys.plan(CAMPAIGN.replace("0.3", "0.4")).shards[0].name != first.name
    assert toys.plan("timeout_s: 5\n" + CAMPAIGN).shards[0].name == first.name
