"""The kvpress engine: plain transformers with a press of kvpress, in an environment of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from kvfrontier.engines import engine
from kvfrontier.engines.base import Engine
from kvfrontier.errors import Unsupported
from kvfrontier.parameters import PositiveInt

if TYPE_CHECKING:
    from kvfrontier.engines._kvpress_session import KVPressSession
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model, ModelSpec
    from kvfrontier.strategies.base import Strategy

RUNS = ("full", "kvpress")


@engine("kvpress")
class KVPressEngine(Engine):
    """transformers' own attention and cache, with a press around the forward pass, as kvpress's users run it."""

    environment: ClassVar[str] = "kvpress"
    offers = frozenset({"steps", "logits", "kept_positions", "text"})
    packages = ("kvpress", "torch", "transformers")

    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "auto"],
        Field(description="Weights and cache; auto: bfloat16 on CUDA, float32 on a CPU"),
    ] = "float32"
    attention: Annotated[
        Literal["sdpa", "eager"], Field(description="eager for presses that read attention (ObservedAttention)")
    ] = "sdpa"
    threads: Annotated[PositiveInt, Field(description="Threads of a CPU's kernels")] = 1

    def check(self, strategy: Strategy, spec: ModelSpec) -> None:
        """Raise Unsupported for strategies that are not kvpress's."""
        if strategy.name not in RUNS:
            raise Unsupported(f"engine 'kvpress' runs presses and the full cache; '{strategy.name}' runs on 'torch'")

    def load(self, model: Model, device: Device) -> KVPressSession:
        """Load the model on the declared device; raises DeviceMismatch where this machine has another one."""
        import torch

        from kvfrontier.engines._device import dtype_for, verify_device
        from kvfrontier.engines._kvpress_session import KVPressSession
        from kvfrontier.models.loader import load_model

        verify_device(device)
        torch.set_num_threads(self.threads)
        loaded, tokenizer = load_model(model, device, dtype_for(self.dtype, device), self.attention)
        return KVPressSession(loaded, tokenizer, model.name)
