"""A loaded transformers model: it belongs to the engine until it is closed."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from kvfrontier.cache.interface import ATTENTION
from kvfrontier.cache.rotary import Rotary
from kvfrontier.engines._greedy import Readings, answer
from kvfrontier.engines._memory import MemoryLimit, give_back_heap
from kvfrontier.engines._queries_ahead import QueriesAhead
from kvfrontier.engines._torch_model import check_model, spec_of
from kvfrontier.engines._torch_sequences import TorchSequences
from kvfrontier.engines.base import Generation, Session, require_open_layers
from kvfrontier.strategies.base import Strategy

Prefill = Literal["sdpa", "eager", "chunked"]


class TorchSession(Session):
    """A loaded model. It belongs to the session until `close`, which gives it its own attention back."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any = None,
        prefill: Prefill = "sdpa",
        chunk_tokens: int = 512,
        name: str = "",
        limit: MemoryLimit | None = None,
    ):
        check_model(model)
        self.model, self.tokenizer = model, tokenizer
        self.prefill, self.chunk_tokens = prefill, chunk_tokens
        self.spec = spec_of(model, name or type(model).__name__)
        self.device = model.device
        self.memo: dict[Any, Any] = {}
        self._limit = limit or MemoryLimit(self.device, None)
        self._model_attention = model.config._attn_implementation
        model.set_attn_implementation(ATTENTION)
        self._queries_ahead: QueriesAhead | None = None

    def open(self, strategy: Strategy) -> TorchSequences:
        """An empty batch under `strategy`; raises Unsupported where the model cannot do what the strategy requires."""
        require_open_layers(strategy, self.spec)
        strategy.check(self.spec)
        if "rotation" in strategy.requires():
            Rotary.of(self.model)
        sequences = TorchSequences(self, strategy)
        if self._limit.limit_bytes is not None:
            sequences.cache.start_links()
        self._limit.renew()
        return sequences

    def queries_ahead(self, strategy: Strategy) -> QueriesAhead | None:
        """For strategies that require it; raises Unsupported where the model does not tell."""
        if "queries_ahead" in strategy.requires() and self._queries_ahead is None:
            self._queries_ahead = QueriesAhead(self.model, self.spec.layers)
        return self._queries_ahead if "queries_ahead" in strategy.requires() else None

    def generate(self, strategy: Strategy, prompts: Sequence[Sequence[int]], output_tokens: int) -> Generation:
        """Prefill and produce exactly `output_tokens` greedy tokens a row; see `Generation`."""
        copied: Counter[str] = Counter()  # when decoding began

        def read_memory(phase: str, sequences: TorchSequences, steps: int) -> Readings:
            found = self._memory(phase, sequences, prompts, steps)
            for metric, size in sequences.cache.copied_bytes().items():
                found.append((metric, phase, (size - copied[metric]) / max(1, steps)))
                copied[metric] = size
            return found

        generation, sequences = answer(lambda: self.open(strategy), prompts, output_tokens, self.device, read_memory)
        generation.kept_tokens = [layer.counts.double().mean(0).tolist() for layer in sequences.cache.layers]
        generation.fetched = sequences.fetched()
        return generation

    def close(self) -> None:
        """Give the model its own attention back and let go of it."""
        if self.model is not None:
            self.model.set_attn_implementation(self._model_attention)
        self.memo.clear()
        self.model = self._queries_ahead = None
        self._limit.lift()
        self.free_unused()

    def free_unused(self) -> None:
        """Give back what nothing refers to any more, as after an allocation that failed."""
        gc.collect()
        give_back_heap()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _memory(self, phase: str, sequences: TorchSequences, prompts: Sequence[Sequence[int]], steps: int) -> Readings:
        element, whole = self.model.dtype.itemsize, self.spec.open_part()
        tensors = sequences.bytes_by_metric()
        in_windows = sum(self.spec.window_bytes(len(row) + steps, element) for row in prompts)
        by_formula = (sequences.cache.strategy.kv_bytes(whole, element, len(row), steps) for row in prompts)
        tensors["kv_formula_bytes"] = in_windows + sum(by_formula)
        all_tokens = sum(len(row) + steps for row in prompts)
        tensors["kv_full_bytes"] = in_windows + all_tokens * whole.kv_bytes_per_token(element)
        return [(metric, phase, float(size)) for metric, size in tensors.items()]
