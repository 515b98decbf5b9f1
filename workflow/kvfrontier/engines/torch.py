"""The torch engine: transformers models, our own cache and generation loop, on a CPU or a CUDA device."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvfrontier.cache.notes import OF_ENGINE, OF_WORKLOAD
from kvfrontier.engines import engine
from kvfrontier.engines.base import Engine, require_open_layers
from kvfrontier.errors import Unsupported
from kvfrontier.parameters import PositiveInt

if TYPE_CHECKING:
    from kvfrontier.engines._torch_session import TorchSession
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model, ModelSpec
    from kvfrontier.strategies.base import Strategy

_OFFERS = frozenset({"steps", "logits", "kept_positions", "text", "turns"})
_DELIVERS = OF_ENGINE | OF_WORKLOAD
_DELIVERS |= {"attention_mass", "chunks", "decode_mass", "queries_ahead", "rotation", "transfers", "whole_sequence"}


@engine("torch")
class Torch(Engine):
    """transformers models whose attention goes through the AttentionInterface; every strategy at every step.

    Layers with a sliding window are the model's own: they hold their window in full precision, and a strategy acts on
    the others. Attention sinks (GPT-OSS) take part in every softmax, those of scores too. Multi-head latent attention
    (DeepSeek) is held as transformers expands it: a key and a value for each head, not the latent.
    """

    packages = ("torch", "transformers")

    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "auto"],
        Field(description="Weights and cache; auto: bfloat16 on CUDA, float32 on a CPU (where bfloat16 is slower)"),
    ] = "float32"
    prefill: Annotated[
        Literal["sdpa", "eager", "chunked"],
        Field(description="Fused attention, the materialised matrix (O(n^2) memory), or chunks of the prompt"),
    ] = "sdpa"
    chunk_tokens: Annotated[
        PositiveInt,
        Field(
            description="Tokens a chunk of `prefill: chunked`; a strategy that defines its own chunks is read in those"
        ),
    ] = 512
    threads: Annotated[PositiveInt, Field(description="Threads of a CPU's kernels")] = 1
    memory_limit_gb: Annotated[
        float | None,
        Field(gt=0, description="Memory (10^9 bytes) of the process, or of its part of a CUDA device; beyond it: oom"),
    ] = None

    @property
    def offers(self) -> frozenset[str]:
        """With a declared limit that, too."""
        return _OFFERS if self.memory_limit_gb is None else _OFFERS | {"memory_limit_gb"}

    def check(self, strategy: Strategy, spec: ModelSpec) -> None:
        """Raise Unsupported where a strategy requires what this engine does not deliver."""
        require_open_layers(strategy, spec)
        missing = sorted(strategy.requires() - _DELIVERS)
        if missing:
            raise Unsupported(f"engine 'torch' does not deliver {', '.join(missing)}, which '{strategy.name}' requires")

    def load(self, model: Model, device: Device) -> TorchSession:
        """Load the model on the declared device; raises DeviceMismatch where this machine has another one."""
        import torch

        from kvfrontier.engines._device import dtype_for, verify_device
        from kvfrontier.engines._memory import MemoryLimit
        from kvfrontier.engines._torch_session import TorchSession
        from kvfrontier.models.loader import load_model

        verify_device(device)
        torch.set_num_threads(self.threads)
        limit = MemoryLimit(torch.device(device.kind), self.memory_limit_gb)
        with ExitStack() as failing:
            failing.callback(limit.lift)
            limit.renew()
            loaded, tokenizer = load_model(model, device, dtype_for(self.dtype, device))
            session = TorchSession(loaded, tokenizer, self.prefill, self.chunk_tokens, model.name, limit)
            failing.pop_all()  # from here on the session lifts it
        return session
