"""Time and memory of inference from a model's shape and a device's rates: whichever of arithmetic and memory is slower.

Modelled, never measured. Symbols: P parameters, L layers, H_q query heads, d head_dim, n prompt tokens, B batch,
k kept tokens, kappa KV bytes per token (2 x L x H_kv x d x bytes), W weight bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvfrontier.plan.device import Device
from kvfrontier.plan.model import ModelSpec

SCORE_BYTES = 4  # a float32 score per kept token and KV head


@dataclass(frozen=True)
class Roofline:
    """`efficiency`: the share of the device's peak rates that real kernels reach, in (0, 1]."""

    spec: ModelSpec
    device: Device
    bytes_per_element: int
    efficiency: float

    @property
    def weight_bytes(self) -> int:
        """W = P x bytes."""
        return self.spec.parameters * self.bytes_per_element

    def kv_bytes(self, kept_tokens: float) -> float:
        """Keys and values of `kept_tokens` (summed over the batch): kept x kappa."""
        return kept_tokens * self.spec.kv_bytes_per_token(self.bytes_per_element)

    def score_bytes(self, kept_tokens: float) -> float:
        """What a strategy that accumulates attention keeps beside keys and values."""
        return kept_tokens * SCORE_BYTES * self.spec.layers * self.spec.kv_heads

    def prefill_s(self, prompt_tokens: Sequence[int], scores_attention: bool) -> float:
        """One prefill of all prompts: 2 P n + 2 n^2 H_q d L operations each (causal); x 1.5 with exact scores."""
        attention = self.spec.q_heads * self.spec.head_dim * self.spec.layers
        factor = 3 if scores_attention else 2
        operations = sum(2 * self.spec.parameters * n + factor * n * n * attention for n in prompt_tokens)
        return self._slower_s(operations, self.weight_bytes + self.kv_bytes(sum(prompt_tokens)))

    def step_s(self, batch: int, kept_tokens: float, kv_bytes: float | None = None) -> float:
        """One decode step over the batch's kept tokens: (W + kept x kappa) / (efficiency x bandwidth) + overhead.

        kv_bytes: what these tokens take where they are not held in full precision.
        """
        attention = self.spec.q_heads * self.spec.head_dim * self.spec.layers
        operations = 2 * self.spec.parameters * batch + 4 * kept_tokens * attention
        moved_bytes = self.weight_bytes + (self.kv_bytes(kept_tokens) if kv_bytes is None else kv_bytes)
        return self._slower_s(operations, moved_bytes) + self.device.step_overhead_s

    def _slower_s(self, operations: float, moved_bytes: float) -> float:
        arithmetic_s = operations / (self.efficiency * self.device.flops_per_s)
        memory_s = moved_bytes / (self.efficiency * self.device.memory_bytes_per_s)
        return max(arithmetic_s, memory_s)
