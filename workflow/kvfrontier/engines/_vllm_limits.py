"""What vLLM cannot do on a kind of device: read from its sources and tried, so that the plan can say it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvfrontier.errors import Unsupported
from kvfrontier.plan.environment import NOT_INSTALLED, Environment

if TYPE_CHECKING:
    from kvfrontier.engines.vllm import VLLM
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import ModelSpec

KVCacheDtype = Literal[
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "int4_per_token_head", "int8_per_token_head",
    "fp8_per_token_head", "nvfp4", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
]  # fmt: skip
Connector = Literal[
    "ExampleConnector", "OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheConnectorV1", "NixlConnector"
]

CPU_KV_CACHE_DTYPES = frozenset({"auto", "fp8", "fp8_e4m3", "fp8_e5m2"})
"""What vLLM's attention for CPUs declares. It does not check: others start, claim the capacity and write garbage."""
CPU_BLOCK_TOKENS, CPU_DEFAULT_BLOCK_TOKENS = 32, 128
"""Blocks of its kernels are multiples of the first."""
CPU_POOL_BYTES = 2**30
"""Where nothing is said: vLLM itself would take nine tenths of all memory."""
CPUINFO = Path("/proc/cpuinfo")
WIDE_REGISTERS = frozenset({"avx512f", "amx_tile"})
"""What fp8 needs of a processor (either), in the words of that file."""
ON_CUDA_ALONE = {
    "OffloadingConnector": "copies to host memory by CUDA",
    "SimpleCPUOffloadConnector": "copies to host memory by CUDA",
    "LMCacheConnectorV1": "needs LMCache, which is built for CUDA",
    "NixlConnector": "moves memory of GPUs",
}
STEP_TOKENS = 2048
"""Where `max_num_batched_tokens` is null: what `vllm.LLMEngine` takes on every device (`vllm.LLM` takes more)."""
CONNECTOR_BYTES = 4 * 2**30
TAKES_CONNECTOR_BYTES = ("OffloadingConnector", "SimpleCPUOffloadConnector")
"""They alone read `cpu_bytes_to_use`, for all ranks together."""
LMCACHE_BYTES = 5 * 2**30
"""Host memory of each of its processes, unless LMCACHE_MAX_LOCAL_CPU_SIZE says otherwise."""
BROUGHT_BY = {"LMCacheConnectorV1": "lmcache", "NixlConnector": "nixl"}
"""Packages that vLLM does not bring."""


def require_device(engine: VLLM, device: Device) -> None:
    """Raise Unsupported where these settings cannot run on that device."""
    if reason := (_on_a_cpu if device.kind == "cpu" else _on_cuda)(engine):
        raise Unsupported(reason)
    if device.kind == "cpu" and engine.kv_cache_dtype != "auto" and not _has_wide_registers(device):
        raise Unsupported(
            f"kv_cache_dtype {engine.kv_cache_dtype} on a CPU needs AVX-512 or AMX, and this machine's has neither"
        )


def require_settings(engine: VLLM, spec: ModelSpec) -> None:
    """Raise Unsupported for settings with which vLLM would surely not start, or one of which it would not read."""
    if reason := _pool(engine, spec) or _steps(engine, spec) or _connector_bytes(engine):
        raise Unsupported(reason)


def connector_host_bytes(engine: VLLM) -> int:
    """Host memory that its connector takes at most, on CUDA."""
    if engine.kv_connector in TAKES_CONNECTOR_BYTES:
        return engine.kv_connector_bytes
    return LMCACHE_BYTES * engine.tensor_parallel_size if engine.kv_connector == "LMCacheConnectorV1" else 0


def _pool(engine: VLLM, spec: ModelSpec) -> str:
    """It holds one sequence of max_model_len."""
    holds = None
    if engine.num_gpu_blocks_override and engine.block_size:
        holds = engine.num_gpu_blocks_override * engine.block_size
    elif engine.kv_cache_memory_bytes and None not in (spec.layers, spec.kv_heads, spec.head_dim):
        narrowest = 1 if engine.kv_cache_dtype != "auto" else 4 if engine.dtype == "float32" else 2
        holds = engine.kv_cache_memory_bytes // spec.kv_bytes_per_token(narrowest)
    if holds is None or (engine.max_model_len or 0) <= holds:
        return ""
    return f"the pool of blocks holds {holds} tokens, less than one sequence of max_model_len {engine.max_model_len}"


def _steps(engine: VLLM, spec: ModelSpec) -> str:
    """vLLM's `SchedulerConfig.verify_max_model_len`: a step has a token for each request that runs, and room for a
    whole sequence where prompts are not read in chunks."""
    given, longest = engine.max_num_batched_tokens, engine.max_model_len or spec.max_positions
    whole = 1 if engine.enable_chunked_prefill else longest or given
    if whole is None:
        return ""  # a model whose length is not known yet
    step = given or max(STEP_TOKENS, whole)
    if step < whole:
        whose = "max_model_len" if engine.max_model_len else f"what model {spec.name} reads,"
        return (
            f"enable_chunked_prefill: false wants steps that hold a whole sequence, and max_num_batched_tokens {step} "
            f"is less than {whose} {whole}: raise it, or set max_model_len to at most {step}"
        )
    if (engine.max_num_seqs or 0) > step:
        return (
            f"max_num_seqs {engine.max_num_seqs} is more than the {step} tokens of a step, of which each request that "
            "runs takes one: lower it, or raise max_num_batched_tokens"
        )
    return ""


def _connector_bytes(engine: VLLM) -> str:
    """Another connector would run, with a size of its own."""
    name = engine.kv_connector
    if not name or name in TAKES_CONNECTOR_BYTES or engine.kv_connector_bytes == CONNECTOR_BYTES:
        return ""
    return f"kv_connector_bytes is for {' and '.join(TAKES_CONNECTOR_BYTES)}: {name} does not read it; leave it out"


def _on_a_cpu(engine: VLLM) -> str:
    if engine.kv_cache_dtype not in CPU_KV_CACHE_DTYPES:
        return f"vLLM's attention for CPUs has no cache of type {engine.kv_cache_dtype}: it would write garbage"
    if engine.kv_connector in ON_CUDA_ALONE:
        return f"{engine.kv_connector} {ON_CUDA_ALONE[engine.kv_connector]}, so it has no use on a CPU"
    if engine.tensor_parallel_size > 1:
        return "tensor_parallel_size spreads a model over GPUs: on a CPU it is 1"
    if engine.block_size and engine.block_size % CPU_BLOCK_TOKENS:
        return f"block_size {engine.block_size}: vLLM's kernels for CPUs take multiples of {CPU_BLOCK_TOKENS}"
    return ""


def _on_cuda(engine: VLLM) -> str:
    package, environment = BROUGHT_BY.get(engine.kv_connector or "", ""), Environment("vllm-cuda")
    if package and environment.is_made and environment.version(package) == NOT_INSTALLED:
        return f"{engine.kv_connector} needs {package} beside vLLM; add it to {environment.pins}"
    return ""


def _has_wide_registers(device: Device) -> bool:
    """Of this machine, if it is the declared device; a plan made elsewhere leaves it to the worker."""
    told = CPUINFO.read_text() if CPUINFO.exists() else ""
    is_another = not told or device.match.lower() not in told.lower()
    return is_another or bool(WIDE_REGISTERS & set(told.split()))
