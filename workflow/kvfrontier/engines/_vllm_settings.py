"""From the engine's parameters to vLLM's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoTokenizer
from vllm import EngineArgs

from kvfrontier.engines._device import dtype_for
from kvfrontier.engines._vllm_limits import CPU_POOL_BYTES, TAKES_CONNECTOR_BYTES
from kvfrontier.errors import Unsupported

if TYPE_CHECKING:
    from kvfrontier.engines._vllm_tier import DiskTier
    from kvfrontier.engines.vllm import VLLM
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model

MAX_NUM_SEQS = 256
"""As `vllm.LLM` has it; a step has at least as many tokens, or vLLM refuses to start."""
AS_LONG_AS_FITS = -1
"""vLLM's word for the longest sequence that model and pool allow."""
PASSED_ON = (
    "kv_cache_dtype", "block_size", "num_gpu_blocks_override", "gpu_memory_utilization", "max_num_batched_tokens",
    "enable_chunked_prefill", "enable_prefix_caching", "tensor_parallel_size",
)  # fmt: skip
WINDOWED = {"llama": ("mistral", "MistralForCausalLM"), "mistral": ("mistral", "MistralForCausalLM")}
"""A model's kind -> the same layers in a kind whose configuration knows a sliding window."""


def engine_args(engine: VLLM, model: Model, device: Device, folder: Path, disk: DiskTier | None) -> EngineArgs:
    """What the engine is started with; weights come from safetensors alone."""
    given = {name: value for name in PASSED_ON if (value := getattr(engine, name)) is not None}
    pool = engine.kv_cache_memory_bytes
    if pool is None and device.kind == "cpu":
        pool = CPU_POOL_BYTES
    if engine.sliding_window:
        given["hf_overrides"] = _windowed(folder, engine.sliding_window)
    if engine.tensor_parallel_size > 1:
        given["distributed_executor_backend"] = "mp"  # inside a Ray actor it would look for a Ray of its own
    if engine.kv_connector:
        given["kv_transfer_config"] = _connector(engine, disk)
    return EngineArgs(
        model=str(folder),
        dtype=dtype_for(engine.dtype, device),
        max_model_len=engine.max_model_len or AS_LONG_AS_FITS,
        max_num_seqs=engine.max_num_seqs or min(MAX_NUM_SEQS, engine.max_num_batched_tokens or MAX_NUM_SEQS),
        kv_cache_memory_bytes=pool,
        enforce_eager=device.kind == "cpu" if engine.enforce_eager is None else engine.enforce_eager,
        load_format="safetensors",
        trust_remote_code=model.trust_remote_code,
        seed=0,
        disable_log_stats=True,
        **given,
    )


def load_tokenizer(model: Model, folder: Path) -> Any:
    """The model's own."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=model.trust_remote_code)


def _windowed(folder: Path, window: int) -> dict[str, Any]:
    """Raise Unsupported for a model that no kind with a window is like."""
    kind = AutoConfig.from_pretrained(folder, local_files_only=True).model_type
    if kind not in WINDOWED:
        raise Unsupported(f"sliding_window is for models of type {', '.join(WINDOWED)}; this one is of type {kind}")
    name, architecture = WINDOWED[kind]
    return {"sliding_window": window, "model_type": name, "architectures": [architecture]}


def _connector(engine: VLLM, disk: DiskTier | None) -> dict[str, Any]:
    own: dict[str, Any] = {"shared_storage_path": str(disk.folder)} if disk else {}
    if engine.kv_connector in TAKES_CONNECTOR_BYTES:
        own["cpu_bytes_to_use"] = engine.kv_connector_bytes
    return {"kv_connector": engine.kv_connector, "kv_role": "kv_both", "kv_connector_extra_config": own}
