"""Simulator: times and bytes from the cost model, no weights, no torch. Its rows say `source = model`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from kvfrontier.costmodel.roofline import Roofline
from kvfrontier.engines import engine
from kvfrontier.engines.base import Engine, Generation, Sequences, Session
from kvfrontier.errors import Unsupported
from kvfrontier.metrics import KV_AUX_BYTES, KV_DEVICE_BYTES, KV_HOST_BYTES
from kvfrontier.units import format_bytes

if TYPE_CHECKING:
    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model, ModelSpec
    from kvfrontier.strategies.base import Strategy

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SPEC_FIELDS = ("layers", "q_heads", "kv_heads", "head_dim", "parameters")
RATES = ("flops_per_s", "memory_bytes_per_s")


class SimulatedSession(Session):
    """Answers `generate` by formula; every call with the same arguments gives the same numbers."""

    tokenizer = None

    def __init__(self, model: Roofline):
        self.spec: ModelSpec = model.spec
        self.memo: dict[Any, Any] = {}
        self._model = model

    def open(self, strategy: Strategy) -> Sequences:
        raise Unsupported("the simulator has no cache to step through; it offers whole generations only")

    def generate(self, strategy: Strategy, prompts: Sequence[Sequence[int]], output_tokens: int) -> Generation:
        lengths = [len(prompt) for prompt in prompts]
        scores_attention = "attention_mass" in strategy.requires()
        kept = [self._kept(strategy, lengths, done) for done in range(output_tokens)]
        held = [self._held_bytes(strategy, lengths, done) for done in range(output_tokens)]
        self._check_fits(max([self._model.kv_bytes(sum(lengths)), *held]))
        at_s = self._model.prefill_s(lengths, scores_attention)
        times_s = [at_s]
        for step in range(1, output_tokens):
            at_s += self._model.step_s(len(lengths), kept[step], held[step])
            times_s.append(at_s)
        rows = [strategy.kept_by_layer(self.spec.layers, length, output_tokens - 1) for length in lengths]
        by_layer = [sum(layer) / len(lengths) for layer in zip(*rows, strict=True)]
        return Generation(
            tokens=[[0] * output_tokens for _ in lengths],
            token_times_s=[list(times_s) for _ in lengths],
            memory=[
                reading
                for phase, step in (("prefill", 0), ("decode", -1))
                for reading in self._memory(phase, kept[step], held[step], scores_attention)
            ],
            kept_tokens=[[per_head] * self.spec.kv_heads for per_head in by_layer],
            seen_tokens=sum(lengths) / len(lengths) + output_tokens - 1,
        )

    def close(self) -> None:
        self.memo.clear()

    def _kept(self, strategy: Strategy, lengths: list[int], generated: int) -> int:
        """Tokens kept per KV head, summed over the batch, after `generated` decode steps."""
        return sum(strategy.kept_tokens(length, generated) for length in lengths)

    def _held_bytes(self, strategy: Strategy, lengths: list[int], generated: int) -> int:
        """Bytes of the batch's keys and values after `generated` decode steps."""
        element = self._model.bytes_per_element
        return sum(strategy.kv_bytes(self.spec, element, length, generated) for length in lengths)

    def _memory(
        self, phase: str, kept_tokens: int, held_bytes: int, scores_attention: bool
    ) -> list[tuple[str, str, float]]:
        return [
            (KV_DEVICE_BYTES, phase, held_bytes),
            (KV_HOST_BYTES, phase, 0.0),
            (KV_AUX_BYTES, phase, self._model.score_bytes(kept_tokens) if scores_attention else 0.0),
        ]

    def _check_fits(self, peak_kv_bytes: float) -> None:
        needed = self._model.weight_bytes + peak_kv_bytes
        memory = self._model.device.memory_bytes
        if memory is not None and needed > memory:
            held = f"{self._model.device.name} has {format_bytes(memory)}"
            raise MemoryError(f"predicted: weights and cache need to allocate {needed:.0f} bytes, {held}")


@engine("simulator")
class Simulator(Engine):
    """A roofline of the model's shape and the device's declared rates (config/devices.yaml)."""

    source: ClassVar[str] = "model"

    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], Field(description="Type of weights, keys and values")
    ] = "bfloat16"
    efficiency: Annotated[
        float, Field(gt=0, le=1, description="Share of the device's peak rates that kernels reach")
    ] = 0.75

    def check(self, strategy: Strategy, spec: ModelSpec) -> None:
        if "chunks" in strategy.requires():
            raise Unsupported(f"the simulator has no formula for a prefill in chunks, which '{strategy.name}' requires")
        if "kvpress" in strategy.requires():
            raise Unsupported("the simulator has no formula for presses: engine kvpress runs them")
        if "transfers" in strategy.requires():
            raise Unsupported(f"the simulator has no formula for copies between memories, as '{strategy.name}' makes")
        if spec.windows:
            raise Unsupported(f"the simulator has no formula for layers with a sliding window, which {spec.name} has")
        unknown = [name for name in SPEC_FIELDS if getattr(spec, name) is None]
        if unknown:
            raise Unsupported(
                f"the simulator needs {', '.join(unknown)} of {spec.name} under `shape:` in config/models.yaml"
            )

    def load(self, model: Model, device: Device) -> SimulatedSession:
        unknown = [name for name in RATES if getattr(device, name) is None]
        if unknown:
            raise Unsupported(f"the simulator needs {' and '.join(unknown)} of {device.name} in config/devices.yaml")
        return SimulatedSession(Roofline(model.spec, device, ELEMENT_BYTES[self.dtype], self.efficiency))
