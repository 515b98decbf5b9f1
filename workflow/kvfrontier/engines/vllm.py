"""vLLM itself as an engine: its scheduler, its paged cache, its kernels, in an environment of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from kvfrontier.engines import engine
from kvfrontier.engines._vllm_limits import (
    CONNECTOR_BYTES,
    CPU_DEFAULT_BLOCK_TOKENS,
    CPU_POOL_BYTES,
    Connector,
    KVCacheDtype,
    connector_host_bytes,
    require_device,
    require_settings,
)
from kvfrontier.engines.base import Engine
from kvfrontier.errors import Unsupported
from kvfrontier.parameters import PositiveInt, Share

if TYPE_CHECKING:
    from kvfrontier.engines._vllm_session import VLLMSession
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model, ModelSpec
    from kvfrontier.strategies.base import Strategy


WIDEST_ELEMENT_BYTES = 4
RELOADABLE = frozenset({
    "block_size", "kv_cache_memory_bytes", "num_gpu_blocks_override", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "enable_chunked_prefill", "enable_prefix_caching", "allow_prefix_hits",
})  # fmt: skip
"""Of the scheduler and the pool, which are each engine's own. Threads and a connector's state are the process's."""


@engine("vllm")
class VLLM(Engine):
    """vLLM in this process (0.32 on CPUs, 0.33 on CUDA); parameters have its own names. It keeps every token as it is.

    `kv_device_bytes` are its blocks in use, at their peak; what it reserves (`kv_reserved_bytes`) is a setting.
    """

    environment: ClassVar[str] = "vllm-cpu"
    offers = frozenset({"text", "schedule"})
    packages = ("vllm", "torch", "transformers")

    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "auto"],
        Field(description="Weights, and the cache where kv_cache_dtype is auto; auto: bfloat16 on CUDA, else float32"),
    ] = "float32"
    kv_cache_dtype: Annotated[
        KVCacheDtype, Field(description="Type of the cache; believed once its greedy tokens agree with those of auto")
    ] = "auto"
    kv_cache_agreement: Annotated[
        Share, Field(description="Share of a probe's greedy tokens that must be those of auto; of garbage few are")
    ] = 0.5
    block_size: Annotated[
        PositiveInt | None, Field(description="Tokens of a block; null: vLLM's choice (128 on CPUs, 16 on most GPUs)")
    ] = None
    kv_cache_memory_bytes: Annotated[
        PositiveInt | None,
        Field(description="Bytes of the pool of blocks; null: 2^30 on CPUs, as gpu_memory_utilization says on CUDA"),
    ] = None
    num_gpu_blocks_override: Annotated[PositiveInt | None, Field(description="Blocks of the pool, instead")] = None
    gpu_memory_utilization: Annotated[
        float, Field(gt=0, le=1, description="Share of a GPU's memory for weights, activations and the pool")
    ] = 0.9
    max_model_len: Annotated[
        PositiveInt | None,
        Field(description="Longest sequence, which the pool must hold; null: as long as it holds and the model reads"),
    ] = None
    max_num_seqs: Annotated[
        PositiveInt | None,
        Field(description="Requests that run at once, others wait; null: 256, at most max_num_batched_tokens"),
    ] = None
    max_num_batched_tokens: Annotated[
        PositiveInt | None,
        Field(
            description="Tokens of a step: longer prompts are read in chunks; null: 2048, or a whole sequence where "
            "chunks are off"
        ),
    ] = None
    enable_chunked_prefill: Annotated[
        bool, Field(description="Whether a prompt may be read in several steps, beside others that decode")
    ] = True
    enable_prefix_caching: Annotated[
        bool, Field(description="Whether blocks of equal beginnings are shared, and found again")
    ] = False
    allow_prefix_hits: Annotated[
        bool,
        Field(
            description="Keep what was cached from batch to batch. If not, each begins with nothing cached, and over "
            "1 % of prompt tokens found in a cache is an error"
        ),
    ] = False
    sliding_window: Annotated[
        PositiveInt | None,
        Field(description="Tokens that a query of a Llama-like model sees, which changes what it says; null: all"),
    ] = None
    kv_connector: Annotated[
        Connector | None,
        Field(description="vLLM's class for where else keys and values lie: ExampleConnector: on disk; null: nowhere"),
    ] = None
    kv_connector_bytes: Annotated[
        PositiveInt,
        Field(description="Host memory of OffloadingConnector or SimpleCPUOffloadConnector; no other reads it"),
    ] = CONNECTOR_BYTES
    tensor_parallel_size: Annotated[PositiveInt, Field(description="GPUs over which the model is spread")] = 1
    enforce_eager: Annotated[
        bool | None,
        Field(description="Neither torch.compile nor CUDA graphs; null: true on CPUs, where that takes a compiler"),
    ] = None
    threads: Annotated[PositiveInt, Field(description="Threads of a CPU's kernels")] = 1

    @property
    def gpus(self) -> int:
        """What a worker takes of a CUDA machine."""
        return self.tensor_parallel_size

    def environment_on(self, device: Device) -> str:
        """`vllm-cpu` or `vllm-cuda`: two builds of one package."""
        return f"vllm-{device.kind}"

    def reloadable(self, device: Device) -> frozenset[str]:
        """On CPUs, where a closed engine gives its memory back; nobody has looked on a GPU."""
        return RELOADABLE if device.kind == "cpu" else frozenset()

    def check(self, strategy: Strategy, spec: ModelSpec) -> None:
        """Raise Unsupported for strategies that act on single tokens, which vLLM's cache does not know, and for
        settings that do not go together."""
        if strategy.acts:
            raise Unsupported(
                f"vLLM's cache keeps every token as it is: engine 'vllm' runs 'full', '{strategy.name}' runs on 'torch'"
            )
        require_settings(self, spec)

    def check_device(self, device: Device) -> None:
        """Raise Unsupported for what vLLM cannot do on that device, or this machine's processor cannot."""
        require_device(self, device)

    def host_bytes(self, spec: ModelSpec, device: Device) -> int:
        """Its pool, on a CPU; what its connector takes of the host's memory, on CUDA."""
        if device.kind != "cpu":
            return connector_host_bytes(self)
        if self.num_gpu_blocks_override and None not in (spec.layers, spec.kv_heads, spec.head_dim):
            tokens = self.num_gpu_blocks_override * (self.block_size or CPU_DEFAULT_BLOCK_TOKENS)
            return tokens * spec.kv_bytes_per_token(WIDEST_ELEMENT_BYTES)
        return self.kv_cache_memory_bytes or CPU_POOL_BYTES

    def load(self, model: Model, device: Device) -> VLLMSession:
        """Start vLLM on the model; raises Unsupported where a cache of that type writes garbage."""
        from kvfrontier.engines._vllm_process import freeze_once, prepare_process, uncollected

        prepare_process(self.threads)  # before torch and vllm are imported
        with uncollected():
            from kvfrontier.engines._device import verify_device
            from kvfrontier.engines._vllm_probe import believed
            from kvfrontier.engines._vllm_session import VLLMSession
            from kvfrontier.models.loader import locate

            freeze_once()
            verify_device(device)
            self.check_device(device)
            folder = locate(model)
            agreement = believed(self, model, device, folder)
            return VLLMSession(self, model, device, folder, agreement)
