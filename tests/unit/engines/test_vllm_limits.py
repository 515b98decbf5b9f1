"""What vLLM cannot do is said when the plan is made, for the device at hand, with its environment or without it."""

import pytest
from kvfrontier.engines import _vllm_limits as limits
from kvfrontier.errors import Unsupported
from kvfrontier.plan import environment as environments
from kvfrontier.plan.device import Device
from kvfrontier.plan.environment import STAMP, Environment
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import ENGINES, STRATEGIES
from toy_project import DEVICES, ToyProject
from vllm_shared import DOES_NOT_START, STARTS

VLLM = ENGINES.get("vllm")
CPU, H100 = Device("cpu", "cpu"), Device("h100", "cuda", match="H100")
WIDE, NARROW = "flags : sse avx2 avx512f amx_tile", "flags : sse avx2"
EIGHT_THOUSAND = ModelSpec("small", max_positions=8192)


@pytest.fixture
def processor(monkeypatch, tmp_path):
    """A file like /proc/cpuinfo, of an `Example` processor."""

    def install(flags):
        path = tmp_path / "cpuinfo"
        path.write_text(f"model name : Example\n{flags}\n")
        monkeypatch.setattr(limits, "CPUINFO", path)

    return install


def said(ask, *about):
    try:
        ask(*about)
    except Unsupported as told:
        return str(told)
    return ""


def refusal(device=CPU, **settings):
    return said(VLLM(**settings).check_device, device)


def disagreement(spec=EIGHT_THOUSAND, **settings):
    return said(VLLM(**settings).check, STRATEGIES.get("full")(), spec)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_cache_dtype": "turboquant_4bit_nc"}, "no cache of type turboquant_4bit_nc: it would write garbage"),
        ({"kv_cache_dtype": "bfloat16"}, "no cache of type bfloat16"),
        ({"kv_connector": "OffloadingConnector"}, "OffloadingConnector copies to host memory by CUDA"),
        ({"kv_connector": "LMCacheConnectorV1"}, "needs LMCache, which is built for CUDA"),
        ({"tensor_parallel_size": 2}, "spreads a model over GPUs"),
        ({"block_size": 16}, "multiples of 32"),
    ],
)
def test_on_a_cpu(processor, settings, words):
    processor(WIDE)
    assert words in refusal(**settings)
    assert not refusal(H100, **settings)


def test_what_a_cpu_can(processor):
    processor(NARROW)
    for settings in ({}, {"block_size": 64}, {"kv_connector": "ExampleConnector"}, {"enable_prefix_caching": True}):
        assert not refusal(**settings)


def test_eight_bits_want_wide_registers(processor):
    processor(WIDE)
    assert not refusal(kv_cache_dtype="fp8")
    processor("flags : avx2 amx_tile")
    assert not refusal(kv_cache_dtype="fp8")
    processor(NARROW)
    assert "needs AVX-512 or AMX" in refusal(kv_cache_dtype="fp8")
    elsewhere = Device("xeon", "cpu", match="Xeon")
    assert not refusal(elsewhere, kv_cache_dtype="fp8"), "this machine is not the one that is declared"


def test_connectors_that_vllm_does_not_bring(tmp_path, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path))
    assert not refusal(H100, kv_connector="NixlConnector"), "without the environment that is what is said"
    environment = Environment("vllm-cuda")
    environment.folder.mkdir(parents=True)
    (environment.folder / STAMP).write_text(environment.digest)
    assert "NixlConnector needs nixl beside vLLM" in refusal(H100, kv_connector="NixlConnector")
    installed = environment.folder / "lib" / "python3.11" / "site-packages" / "nixl-0.9.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: nixl\nVersion: 0.9\n")
    assert not refusal(H100, kv_connector="NixlConnector")


def test_each_kind_of_device_has_its_environment_and_strategies_that_act_have_none(tmp_path, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path))
    project = ToyProject(tmp_path)
    project.write("devices.yaml", DEVICES)
    axes = {
        "model": "[small]", "engine": "[vllm, torch]", "device": "[cpu, h100]", "strategy": "[full, streaming_llm]",
        "workload": "[{name: speed, text: generated}]",
    }  # fmt: skip
    plan = project.plan("axes:\n" + "".join(f"  {name}: {values}\n" for name, values in axes.items()))
    found = {
        (cell.cell.device, cell.cell.strategy.name): cell for cell in plan.cells if cell.cell.engine.name == "vllm"
    }
    for device, environment in (("cpu", "vllm-cpu"), ("h100", "vllm-cuda")):
        full, acting = found[device, "full"], found[device, "streaming_llm"]
        assert full.status == acting.status == "unsupported"
        assert full.reason == f"environment '{environment}' is missing: kvfrontier env make {environment}"
        assert acting.reason.startswith("vLLM's cache keeps every token as it is")
        assert full.parts["package:vllm"] == "not installed"
    assert {"vllm-cpu/vllm", "vllm-cuda/vllm", "torch"} <= set(plan.packages)
    assert {environment.name for environment in environments.environments()} >= {"vllm-cpu", "vllm-cuda"}


def test_a_cluster_is_asked_for_the_memory_that_it_reserves():
    spec = ModelSpec("small", layers=2, kv_heads=2, head_dim=16)
    assert VLLM().host_bytes(spec, CPU) == 2**30
    assert VLLM(kv_cache_memory_bytes=5).host_bytes(spec, CPU) == 5
    assert VLLM(num_gpu_blocks_override=10).host_bytes(spec, CPU) == 10 * 128 * 2 * 2 * 32 * 4
    assert VLLM(num_gpu_blocks_override=10, block_size=32).host_bytes(spec, CPU) == 10 * 32 * 2 * 2 * 32 * 4
    assert VLLM(kv_cache_memory_bytes=5).host_bytes(spec, H100) == 0
    assert VLLM(kv_connector="OffloadingConnector", kv_connector_bytes=7).host_bytes(spec, H100) == 7
    assert VLLM(kv_connector="LMCacheConnectorV1", tensor_parallel_size=2).host_bytes(spec, H100) == 2 * 5 * 2**30
    assert VLLM(kv_connector="NixlConnector").host_bytes(spec, H100) == 0


@pytest.mark.parametrize(
    ("settings", "holds"),
    [
        ({"kv_cache_memory_bytes": 2**20}, 2**20 // (2 * 2 * 32 * 4)),
        ({"kv_cache_memory_bytes": 2**20, "dtype": "auto"}, 2**20 // (2 * 2 * 32 * 2)),
        ({"kv_cache_memory_bytes": 2**20, "kv_cache_dtype": "fp8"}, 2**20 // (2 * 2 * 32)),
        ({"num_gpu_blocks_override": 12, "block_size": 32}, 12 * 32),
    ],
)
def test_a_pool_that_does_not_hold_one_sequence_is_known_beforehand(settings, holds):
    spec, full = ModelSpec("small", layers=2, kv_heads=2, head_dim=16), STRATEGIES.get("full")()
    VLLM(**settings, max_model_len=holds).check(full, spec)
    with pytest.raises(Unsupported, match=f"holds {holds} tokens, less than one sequence of max_model_len {holds + 1}"):
        VLLM(**settings, max_model_len=holds + 1).check(full, spec)
    VLLM(**settings).check(full, spec)


@pytest.mark.parametrize("settings", STARTS)
def test_steps_that_vllm_takes(settings):
    assert not disagreement(**settings)


@pytest.mark.parametrize("settings", DOES_NOT_START)
def test_steps_with_which_vllm_does_not_start_are_known_beforehand(settings):
    assert "max_num_batched_tokens" in disagreement(**settings)


def test_what_is_said_of_steps_names_both_sides_and_a_way_out():
    apart = {"enable_chunked_prefill": False, "max_num_batched_tokens": 256}
    given = disagreement(**apart, max_model_len=1024)
    assert "max_num_batched_tokens 256 is less than max_model_len 1024: raise it, or set max_model_len" in given
    assert "256 is less than what model small reads, 8192: raise it, or set max_model_len" in disagreement(**apart)
    too_many = disagreement(max_num_seqs=512, max_num_batched_tokens=256)
    assert "max_num_seqs 512 is more than the 256 tokens of a step" in too_many


def test_of_a_model_that_nobody_has_seen_no_length_is_known():
    for settings in ({"max_num_batched_tokens": 256}, {"max_num_seqs": 4096}):
        assert not disagreement(ModelSpec("hub"), enable_chunked_prefill=False, **settings)
    too_many = {"max_num_seqs": 257, "max_num_batched_tokens": 256}
    assert disagreement(ModelSpec("hub"), enable_chunked_prefill=False, **too_many)


@pytest.mark.parametrize("connector", ["ExampleConnector", "LMCacheConnectorV1", "NixlConnector"])
def test_bytes_for_a_connector_that_does_not_read_them_are_refused(connector):
    told = disagreement(kv_connector=connector, kv_connector_bytes=2**30)
    assert f"OffloadingConnector and SimpleCPUOffloadConnector: {connector} does not read it" in told
    assert not disagreement(kv_connector=connector)
    for reads in ("OffloadingConnector", "SimpleCPUOffloadConnector", None):
        assert not disagreement(kv_connector=reads, kv_connector_bytes=2**30)
