"""Seconds of a whole cell before anything like it was measured: a roofline over what its parameters say it reads.

For planning only, right within a small factor where the catalog knows the model's shape and the device's rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from kvfrontier.costmodel.roofline import Roofline
from kvfrontier.plan.device import Device
from kvfrontier.plan.model import ModelSpec

EFFICIENCY = 0.5
"""Share of a device's peak rates that unmeasured kernels are believed to reach."""
RATES = {"cpu": (1e11, 2e10), "cuda": (1e14, 1e12)}
"""flops_per_s and memory_bytes_per_s of a device whose entry says neither."""
PARAMETERS = 10**9
"""Of a model whose shape is not known before it is fetched."""
CONTEXT_TOKENS, OUTPUT_TOKENS = 512, 32
"""Of a workload that has no such parameter."""
TASK_TOKENS, TASK_STEPS = 40, 2
"""Of a document of a multiple-choice task, or an example before it; its answers are read in about two steps' time."""
ROUNDS = (
    "repeats", "conversations", "documents", "questions", "samples", "limit", "depths", "requests", "chats", "turns",
)  # fmt: skip
"""Parameters that multiply the work; of a list its length counts."""
CONTEXTS = ("context_tokens", "most_tokens")
OUTPUTS = ("output_tokens", "continuation_tokens", "answer_tokens")


def modelled_s(
    spec: ModelSpec | None, device: Device | None, engine: Mapping[str, Any], workload: Mapping[str, Any]
) -> float:
    """`engine` and `workload`: settings by name, as in `PlannedCell.parameters`; unknown ones are not looked at."""
    known = _with_rates(device or Device("unknown", "cpu"))
    element_bytes = 4 if engine.get("dtype", "float32" if known.kind == "cpu" else "") == "float32" else 2
    model = Roofline(_with_shape(spec or ModelSpec("unknown")), known, element_bytes, EFFICIENCY)
    batch = _count(workload, "batch_size", 1)
    usual_context, usual_output = CONTEXT_TOKENS, OUTPUT_TOKENS
    if "num_fewshot" in workload:
        usual_context, usual_output = TASK_TOKENS * (1 + _count(workload, "num_fewshot", 0)), TASK_STEPS
    context = next((_count(workload, name, 0) for name in CONTEXTS if workload.get(name)), usual_context)
    output = max((_count(workload, name, 0) for name in OUTPUTS), default=0) or usual_output
    rounds = prod(_count(workload, name, 1) for name in ROUNDS)
    prompts = [context] * batch
    return rounds * (model.prefill_s(prompts, False) + output * model.step_s(batch, batch * (context + output / 2)))


def _count(settings: Mapping[str, Any], name: str, default: int) -> int:
    value = settings.get(name)
    if isinstance(value, list | tuple):
        return max(1, len(value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return int(value) if is_number and value >= 1 else default


def _with_rates(device: Device) -> Device:
    flops, memory = RATES[device.kind]
    return replace(
        device,
        flops_per_s=device.flops_per_s or flops,
        memory_bytes_per_s=device.memory_bytes_per_s or memory,
    )


def _with_shape(spec: ModelSpec) -> ModelSpec:
    """Every field that the roofline reads; parameters as 12 x layers x hidden^2 where they are not given."""
    layers, hidden = spec.layers or 24, spec.hidden or 2048
    guessed = 12 * layers * hidden**2 + (spec.vocab or 0) * hidden if spec.layers and spec.hidden else PARAMETERS
    return replace(
        spec,
        layers=layers,
        hidden=hidden,
        q_heads=spec.q_heads or 16,
        kv_heads=spec.kv_heads or 8,
        head_dim=spec.head_dim or 128,
        parameters=spec.parameters or guessed,
    )
