"""config/models.yaml, devices.yaml, data.yaml and config.yaml: what they may say, and model folders."""

from __future__ import annotations

import json
import os

import pytest
from kvfrontier.errors import ConfigError
from kvfrontier.plan import folder as model_folder
from kvfrontier.plan.catalog import load_data, load_devices, load_models

SHA = "a" * 64
NO_TENSORS = (2).to_bytes(8, "little") + b"{}"  # a whole safetensors file
COMMIT = "b" * 40
SHAPE = "shape: {layers: 2, q_heads: 4, kv_heads: 2, head_dim: 16, hidden: 64, vocab: 97, max_positions: 2048}"
CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_size": 64,
    "vocab_size": 97,
    "max_position_embeddings": 2048,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path / "cache"))


def write_model(path, config=CONFIG, weights="model.safetensors"):
    path.mkdir(parents=True)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    (path / weights).write_bytes(NO_TENSORS)
    return path


def folder_problem(toys, path):
    toys.write("models.yaml", f"own: {{folder: {path}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_models(toys.project)["own"]
    (problem,) = caught.value.problems
    assert (problem.file, problem.key) == ("config/models.yaml:1", "own.folder")
    return problem.hint


def test_each_source_becomes_a_model(toys):
    folder = write_model(toys.root / "my-model")
    toys.write("models.yaml", f"""
        packaged: {{wheel: llm-toy==0.1, sha256: {SHA}, member: a/b.gguf, {SHAPE}}}
        org/hub: {{hub: org/hub, revision: {COMMIT}}}
        own: {{folder: my-model}}
        shape.only: {{{SHAPE}}}
    """)  # fmt: skip
    models = load_models(toys.project)
    assert [models[name].source for name in models] == ["wheel", "hub", "folder", "none"]
    assert models["own"].location == str(folder)
    assert models["own"].spec.head_dim == 32
    assert models["org/hub"].spec.layers is None
    assert models["org/hub"].identity == f"org/hub@{COMMIT}"
    assert not models["org/hub"].trust_remote_code
    assert len({models[name].identity for name in models}) == 4


@pytest.mark.parametrize(
    ("entry", "key", "words"),
    [
        ("{hub: org/x}", "m", "revision"),
        ("{hub: org/x, revision: main}", "m.revision", "40 hex digits"),
        ("{}", "m", "exactly one of"),
        ("{hub: org/x, folder: y}", "m", "exactly one of"),
        (f"{{wheel: x==1, sha256: {SHA}}}", "m", "`member`, `shape`"),
        ("{wheel: x, sha256: 3}", "m.wheel", "distribution==version"),
        ("{foldr: x}", "m.foldr", "folder"),
        ("{shape: {layers: 0}}", "m.shape.layers", "1 or more"),
        ("{shape: {layer: 2}}", "m.shape.layer", "layers"),
        (
            "{shape: {layers: 2, q_heads: 4, kv_heads: 3, head_dim: 8, hidden: 32, vocab: 9, max_positions: 9}}",
            "m.shape",
            "multiple of kv_heads",
        ),
        ("{hub: ../x, revision: %s}" % ("a" * 40), "m.hub", "organisation/name"),
        ("[a]", "m", "a mapping"),
    ],
)
def test_a_malformed_model_is_named(toys, entry, key, words):
    toys.write("models.yaml", f"m: {entry}\n")
    with pytest.raises(ConfigError) as caught:
        load_models(toys.project)
    problems = {problem.key: problem for problem in caught.value.problems}
    assert key in problems
    assert words in problems[key].expected


def test_an_unpinned_revision_says_why(toys):
    toys.write("models.yaml", "m: {hub: org/x}\n")
    with pytest.raises(ConfigError, match="branch lets weights change"):
        load_models(toys.project)


def test_a_config_without_head_dim_means_hidden_over_heads(toys):
    config = {key: value for key, value in CONFIG.items() if key not in ("head_dim", "num_key_value_heads")}
    path = write_model(toys.root / "old", config)
    spec = model_folder.folder_spec("old", path)
    assert (spec.head_dim, spec.kv_heads) == (16, 4)


def test_windows_and_latent_attention_are_read_from_config_json(toys):
    kinds = ["sliding_attention", "full_attention"]
    windowed = write_model(toys.root / "windowed", CONFIG | {"layer_types": kinds, "sliding_window": 64})
    assert model_folder.folder_spec("windowed", windowed).windows == (64, None)
    plain = write_model(toys.root / "plain", CONFIG | {"layer_types": ["full_attention"] * 2, "sliding_window": 64})
    assert model_folder.folder_spec("plain", plain).windows == ()
    latent = {"kv_lora_rank": 8, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10}
    spec = model_folder.folder_spec("latent", write_model(toys.root / "latent", CONFIG | latent))
    assert (spec.head_dim, spec.value_dim) == (16, 10)
    wrong = write_model(toys.root / "wrong", CONFIG | {"layer_types": [*kinds, kinds[0]], "sliding_window": 64})
    with pytest.raises(ValueError, match="one a layer"):
        model_folder.folder_spec("wrong", wrong)


def test_a_shape_may_say_its_windows(toys):
    extra = "value_head_dim: 8, window_tokens: 32, full_layers: [1]}"
    toys.write("models.yaml", f"plain: {{{SHAPE}}}\nwindowed: {{{SHAPE[:-1]}, {extra}}}\n")
    models = load_models(toys.project)
    spec = models["windowed"].spec
    assert (spec.windows, spec.value_dim) == ((32, None), 8)
    assert spec.kv_bytes_per_token(2) == 2 * 2 * (16 + 8) * 2
    assert spec.open_part().layers == 1 and spec.open_only(["a", "b"]) == ["b"]
    assert spec.window_bytes(10, 2) == 10 * 2 * 24 * 2 and spec.window_bytes(99, 2) == 31 * 2 * 24 * 2
    assert models["plain"].spec.open_part() == models["plain"].spec
    for wrong in ("window_tokens: 2", "full_layers: [0]", "window_tokens: 9, full_layers: [2]"):
        toys.write("models.yaml", f"windowed: {{{SHAPE[:-1]}, {wrong}}}}}\n")
        with pytest.raises(ConfigError):
            load_models(toys.project)


def test_a_head_dim_that_cannot_be_known_is_a_mistake(toys):
    config = {key: value for key, value in CONFIG.items() if key != "head_dim"} | {"num_attention_heads": 5}
    assert "no multiple of 5 heads" in folder_problem(toys, write_model(toys.root / "odd", config))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 0}, "0 for `head_dim`"),
        ({"num_hidden_layers": "2"}, "'2' for `num_hidden_layers`"),
        ({"max_position_embeddings": "long"}, "'long' for `max_position_embeddings`"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads 3"),
    ],
)
def test_a_shape_that_no_model_can_have_is_a_mistake(toys, changes, words):
    assert words in folder_problem(toys, write_model(toys.root / "odd", CONFIG | changes))


TENSOR = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n",
        len(TENSOR).to_bytes(8, "little") + TENSOR + b"123",
    ],
    ids=["empty", "a Git LFS pointer", "cut off"],
)
def test_weights_that_are_not_whole_are_found_before_anything_runs(toys, weights):
    folder = write_model(toys.root / "half")
    (folder / "model.safetensors").write_bytes(weights)
    assert "model.safetensors: no whole safetensors file" in folder_problem(toys, folder)
    (folder / "model.safetensors").write_bytes(len(TENSOR).to_bytes(8, "little") + TENSOR + b"1234")
    assert model_folder.folder_spec("half", folder).layers == 2


def test_weights_that_the_index_misses_are_named(toys):
    folder = write_model(toys.root / "sharded", weights="model-1-of-2.safetensors")
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-2-of-2.safetensors is not there" in folder_problem(toys, folder)


def test_folders_that_hold_no_model_are_explained(toys):
    assert "There is no folder" in folder_problem(toys, toys.root / "nowhere")
    pickles = write_model(toys.root / "pickles", weights="pytorch_model.bin")
    assert "pickled weights only (pytorch_model.bin)" in folder_problem(toys, pickles)
    assert "no config.json" in folder_problem(toys, write_model(toys.root / "bare", None))
    empty = toys.root / "empty"
    empty.mkdir()
    assert "no *.safetensors" in folder_problem(toys, empty)
    broken = write_model(toys.root / "broken")
    (broken / "config.json").write_text("{")
    assert "config.json" in folder_problem(toys, broken)
    shapeless = write_model(toys.root / "shapeless", {"hidden_size": 64})
    assert "num_hidden_layers" in folder_problem(toys, shapeless)


def test_a_missing_folder_troubles_only_the_campaigns_that_use_it(toys):
    toys.write("models.yaml", f"small: {{{SHAPE}}}\nown: {{folder: nowhere}}\n")
    campaign = """
    device: cpu
    axes: {model: [small], engine: [toy_engine], strategy: [toy_full], workload: {name: toy_speed, context_tokens: 64}}
    """
    assert toys.plan(campaign).cells
    assert "nowhere" in toys.problems(campaign.replace("[small]", "[own]"))["own.folder"].got


def test_the_identity_of_a_folder_follows_its_bytes_and_is_remembered(toys, monkeypatch):
    path = write_model(toys.root / "own")
    first = model_folder.folder_identity(path)
    monkeypatch.setattr(model_folder.hashlib, "file_digest", None)  # hashing again would fail
    assert model_folder.folder_identity(path) == first
    monkeypatch.undo()
    (path / "model.safetensors").write_bytes(b"other..")
    os.utime(path / "model.safetensors", (1, 1))
    changed = model_folder.folder_identity(path)
    assert changed != first
    (path / "README.md").write_text("hello")
    assert model_folder.folder_identity(path) == changed
    (path / "tokenizer.json").write_text("{}")
    assert model_folder.folder_identity(path) != changed


def test_weights_of_the_same_size_with_their_time_put_back_are_still_found_out(toys):
    path = write_model(toys.root / "own")
    weights = path / "model.safetensors"
    before, identity, signature = weights.stat(), model_folder.folder_identity(path), model_folder.stat_signature(path)
    weights.write_bytes(bytes(reversed(weights.read_bytes())))
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_mtime_ns == before.st_mtime_ns and weights.stat().st_size == before.st_size
    assert model_folder.stat_signature(path) != signature
    assert model_folder.folder_identity(path) != identity


@pytest.mark.parametrize("folder", ["~nobody-of-that-name/model", "a" * 5000])
def test_a_folder_that_no_machine_can_have_is_a_problem_of_its_entry(toys, folder):
    toys.write("models.yaml", f"m: {{folder: {folder}}}\n")
    with pytest.raises(ConfigError, match="a folder that can be read") as caught:
        load_models(toys.project)["m"]
    assert caught.value.problems[0].key == "m.folder"


def test_names_that_yaml_takes_for_numbers_must_be_quoted(toys):
    toys.write("models.yaml", f"7: {{{SHAPE}}}\n")
    with pytest.raises(ConfigError, match="put it in quotes"):
        load_models(toys.project)


def test_devices_and_data_are_read(toys):
    assert load_devices(toys.project)["h100"].memory_bytes == 80_000_000_000
    assert load_data(toys.project)["toy_text"].requirement == "toy==1.0"
    toys.write("devices.yaml", "x: {kind: tpu}\n")
    with pytest.raises(ConfigError, match="one of cpu, cuda"):
        load_devices(toys.project)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("campain: x\n", "Did you mean 'campaign'"),
        ("fingerprint: {ignore: [strategy_cod]}\n", "Did you mean 'strategy_code'"),
        ("fingerprint: {ignored: []}\n", "Did you mean 'ignore'"),
        ("fingerprint: {ignore: [cell]}\n", "fingerprint.ignore"),
    ],
)
def test_mistakes_in_config_yaml_are_named(toys, text, words):
    toys.write("config.yaml", text)
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        _ = toys.project


def test_the_shipped_catalogs_are_right():
    from kvfrontier.plan.project import Project

    project = Project.find()
    models = load_models(project)
    assert all(models[name].spec.layers for name in models if models[name].source in ("wheel", "none"))
    assert {"cpu", "h100"} <= set(load_devices(project))
    assert load_data(project)
