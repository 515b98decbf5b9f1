"""The torch engine: transformers models, our own cache and generation loop, on a CPU or a CUDA device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvfrontier.engines import engine
from kvfrontier.engines.base import Engine
from kvfrontier.errors import Unsupported
from kvfrontier.parameters import PositiveInt

if TYPE_CHECKING:
    from kvfrontier.engines._torch_session import TorchSession
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model, ModelSpec
    from kvfrontier.strategies.base import Strategy

_DELIVERS = frozenset({"attention_mass", "chunks", "decode_mass", "rotation"})


@engine("torch")
class Torch(Engine):
    """transformers models with full attention through the AttentionInterface; every strategy at every step."""

    offers = frozenset({"steps", "logits", "kept_positions", "text", "turns"})
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

    def check(self, strategy: Strategy, spec: ModelSpec) -> None:
        """Raise Unsupported where a strategy requires what this engine does not deliver."""
        missing = sorted(strategy.requires() - _DELIVERS)
        if missing:
            raise Unsupported(f"engine 'torch' does not deliver {', '.join(missing)}, which '{strategy.name}' requires")

    def load(self, model: Model, device: Device) -> TorchSession:
        """Load the model on the declared device; raises DeviceMismatch where this machine has another one."""
        import torch

        from kvfrontier.engines._device import dtype_for, verify_device
        from kvfrontier.engines._torch_session import TorchSession
        from kvfrontier.models.loader import load_model

        verify_device(device)
        torch.set_num_threads(self.threads)
        loaded, tokenizer = load_model(model, device, dtype_for(self.dtype, device))
        return TorchSession(loaded, tokenizer, self.prefill, self.chunk_tokens, model.name)
