"""A transformers model with its own attention and cache, and presses of kvpress around its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kvpress
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvfrontier.engines._greedy import Readings, answer
from kvfrontier.engines._kvpress_lane import Lane
from kvfrontier.engines._torch_model import check_model, spec_of
from kvfrontier.engines.base import Generation, Sequences, Session
from kvfrontier.strategies.base import Strategy


class KVPressSession(Session):
    """A loaded model."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None, name: str = ""):
        check_model(model)
        self.model, self.tokenizer = model, tokenizer
        self.spec = spec_of(model, name or type(model).__name__)
        self.device = model.device
        self.memo: dict[Any, Any] = {}

    def open(self, strategy: Strategy) -> KVPressSequences:
        """An empty batch. Each row is read alone: some presses choose for all rows what the first one needs."""
        return KVPressSequences(self, strategy)

    def generate(self, strategy: Strategy, prompts: Sequence[Sequence[int]], output_tokens: int) -> Generation:
        """See `Session`. Rows of one length are read together, as kvpress's users would."""
        together = len({len(row) for row in prompts}) == 1
        generation, sequences = answer(
            lambda: KVPressSequences(self, strategy, together),
            prompts,
            output_tokens,
            self.device,
            lambda phase, sequences, steps: self._memory(phase, sequences, strategy, prompts, steps),
        )
        generation.kept_tokens = [counts.double().mean(0).tolist() for counts in sequences.kept_counts()]
        return generation

    def press(self, strategy: Strategy, tokens: int) -> Any:
        """A fresh press for a prefill of so many tokens a row; None for the full cache."""
        return strategy.make(kvpress, tokens) if "kvpress" in strategy.requires() else None

    def close(self) -> None:
        """Free the model."""
        self.memo.clear()
        self.model = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _memory(
        self, phase: str, sequences: KVPressSequences, strategy: Strategy, prompts: Sequence[Sequence[int]], steps: int
    ) -> Readings:
        tensors, element = sequences.bytes_by_metric(), self.model.dtype.itemsize
        full = sum(len(row) + steps for row in prompts) * self.spec.kv_bytes_per_token(element)
        formula = sum(strategy.kv_bytes(self.spec, element, len(row), steps) for row in prompts)
        tensors |= {"kv_formula_bytes": full if tensors["kv_masked_bytes"] else formula, "kv_full_bytes": full}
        return [(metric, phase, float(size)) for metric, size in tensors.items()]


class KVPressSequences(Sequences):
    """A batch in lanes: of one row each, or all rows in one (`together`), where nobody asks which tokens are kept."""

    def __init__(self, session: KVPressSession, strategy: Strategy, together: bool = False, lanes: Sequence[Lane] = ()):
        self.session, self.strategy, self.together = session, strategy, together
        self.lanes = list(lanes)
        self._rows: list[int] = [1] * len(self.lanes)  # of each lane

    @property
    def seen_tokens(self) -> list[int]:
        """Tokens read so far, a row."""
        return [lane.seen_tokens for lane, rows in zip(self.lanes, self._rows, strict=True) for _ in range(rows)]

    def prefill(self, prompts: Sequence[Sequence[int]], reserve_tokens: int = 0, notes: Any = ()) -> Tensor:
        """Read the prompts; logits `[batch, vocab]`. notes: what a workload tells of them, which no press asks for."""
        if self.lanes:
            raise ValueError("prefill starts a batch; a batch that has read tokens is extended")
        self._rows = [len(prompts)] if self.together else [1] * len(prompts)
        for _ in self._rows:
            press = self.session.press(self.strategy, len(prompts[len(self.lanes)]))
            self.lanes.append(Lane(self.session.model, press, told=not self.together))
        return torch.cat([logits[:, -1] for logits in self._read(prompts)])

    def extend(
        self, tokens: Sequence[Sequence[int]], all_logits: bool = False, notes: Any = ()
    ) -> Tensor | list[Tensor]:
        """Append several tokens a row. A press acts on them only if it acts while decoding."""
        found = self._read(tokens, all_logits)
        return [row for logits in found for row in logits] if all_logits else torch.cat([part[:, -1] for part in found])

    def decode(self, tokens: Tensor | Sequence[int]) -> Tensor:
        """Append one token a row; logits `[batch, vocab]`."""
        return torch.cat([logits[:, -1] for logits in self._read(torch.as_tensor(tokens).reshape(-1, 1).tolist())])

    def fork(self) -> KVPressSequences:
        """An independent copy."""
        copy = KVPressSequences(self.session, self.strategy, self.together, [lane.fork() for lane in self.lanes])
        copy._rows = list(self._rows)
        return copy

    def kept_positions(self) -> list[Tensor]:
        """Per layer `[batch, kv_heads, slots]`, ascending, -1 in unused slots."""
        return [_padded(layers) for layers in zip(*(lane.kept_positions() for lane in self.lanes), strict=True)]

    def kept_counts(self) -> list[Tensor]:
        """Per layer, tokens that attention still sees `[batch, kv_heads]`."""
        return [torch.cat(layers) for layers in zip(*(lane.kept_counts() for lane in self.lanes), strict=True)]

    def bytes_by_metric(self) -> dict[str, int]:
        """Exact tensor bytes now."""
        found = [lane.bytes_by_metric() for lane in self.lanes]
        return {metric: sum(held[metric] for held in found) for metric in found[0]}

    def _read(self, rows: Sequence[Sequence[int]], all_logits: bool = False) -> list[Tensor]:
        """Logits of each lane `[rows, tokens or 1, vocab]`."""
        if len(rows) != sum(self._rows) or not all(len(row) for row in rows):
            raise ValueError(f"expected {sum(self._rows)} non-empty rows, got lengths {[len(row) for row in rows]}")
        found, first = [], 0
        for lane, count in zip(self.lanes, self._rows, strict=True):
            ids = torch.tensor([list(row) for row in rows[first : first + count]], device=self.session.device)
            found.append(lane.read(ids, all_logits))
            first += count
        return found


def _padded(parts: Sequence[Tensor]) -> Tensor:
    widest = max(part.shape[-1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, widest - part.shape[-1]), value=-1) for part in parts])
