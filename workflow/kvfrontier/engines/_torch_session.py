"""A transformers model and the batches that decode on it: the engine's own loop, token ids in, logits out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal
from zlib import crc32

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvfrontier.cache.fetch_log import FetchLog
from kvfrontier.cache.kv import ATTENTION, Call, KVCache
from kvfrontier.cache.rotary import Rotary
from kvfrontier.cache.step_timer import StepTimer
from kvfrontier.engines._memory import PeakMemory
from kvfrontier.engines._queries_ahead import QueriesAhead
from kvfrontier.engines._torch_model import check_model, spec_of
from kvfrontier.engines.base import Generation, Sequences, Session
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
    ):
        check_model(model)
        self.model, self.tokenizer = model, tokenizer
        self.prefill, self.chunk_tokens = prefill, chunk_tokens
        self.spec = spec_of(model, name or type(model).__name__)
        self.device = model.device
        self.memo: dict[Any, Any] = {}
        self._model_attention = model.config._attn_implementation
        model.set_attn_implementation(ATTENTION)
        self._queries_ahead: QueriesAhead | None = None

    def open(self, strategy: Strategy) -> TorchSequences:
        """An empty batch under `strategy`; raises Unsupported where the model cannot do what the strategy requires."""
        if "rotation" in strategy.requires():
            Rotary.of(self.model)
        return TorchSequences(self, strategy)

    def queries_ahead(self, strategy: Strategy) -> QueriesAhead | None:
        """For strategies that require it; raises Unsupported where the model does not tell."""
        if "queries_ahead" in strategy.requires() and self._queries_ahead is None:
            self._queries_ahead = QueriesAhead(self.model, self.spec.layers)
        return self._queries_ahead if "queries_ahead" in strategy.requires() else None

    def generate(self, strategy: Strategy, prompts: Sequence[Sequence[int]], output_tokens: int) -> Generation:
        """Prefill and produce exactly `output_tokens` greedy tokens a row; see `Generation`."""
        peak = PeakMemory(self.device)
        peak.reset()
        steps = output_tokens - 1
        self._synchronize()
        start = time.perf_counter()
        sequences = self.open(strategy)
        produced = [self._argmax(sequences.prefill(prompts, reserve_tokens=steps))]
        times = [time.perf_counter() - start]
        memory = self._memory("prefill", sequences, prompts, 0, peak)
        copied = sequences.cache.copied_bytes()
        memory += [(metric, "prefill", float(size)) for metric, size in copied.items()]
        peak.reset()
        paused = time.perf_counter() - start - times[0]  # reading memory is not the model's time
        for _ in range(steps):
            produced.append(self._argmax(sequences.decode(produced[-1])))
            times.append(time.perf_counter() - start - paused)
        memory += self._memory("decode", sequences, prompts, steps, peak)
        for metric, size in sequences.cache.copied_bytes().items():
            memory += [(metric, "decode", (size - copied[metric]) / steps)] if steps else []
        return Generation(
            tokens=[list(row) for row in zip(*(step.tolist() for step in produced), strict=True)],
            token_times_s=[list(times) for _ in prompts],
            memory=memory,
            kept_tokens=[layer.counts.double().mean(0).tolist() for layer in sequences.cache.layers],
            seen_tokens=sum(sequences.seen_tokens) / len(prompts),
            fetched=sequences.fetched(),
        )

    def close(self) -> None:
        """Give the model its own attention back and let go of it."""
        if self.model is not None:
            self.model.set_attn_implementation(self._model_attention)
        self.memo.clear()
        self.model = self._queries_ahead = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _argmax(self, logits: Tensor) -> Tensor:
        """The next tokens, on the host: the copy waits for the device."""
        return logits.argmax(-1).cpu()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _memory(
        self, phase: str, sequences: TorchSequences, prompts: Sequence[Sequence[int]], steps: int, peak: PeakMemory
    ) -> list[tuple[str, str, float]]:
        strategy, element = sequences.cache.strategy, self.model.dtype.itemsize
        tensors = sequences.bytes_by_metric()
        tensors["kv_formula_bytes"] = sum(strategy.kv_bytes(self.spec, element, len(row), steps) for row in prompts)
        tensors["kv_full_bytes"] = sum(len(row) + steps for row in prompts) * self.spec.kv_bytes_per_token(element)
        return [(metric, phase, float(size)) for metric, size in tensors.items()] + peak.readings(phase)


class TorchSequences(Sequences):
    """A batch over one KV cache. Rows of unequal length are padded on the right, and padding is never stored."""

    def __init__(self, session: TorchSession, strategy: Strategy, cache: KVCache | None = None, reserve: int = 0):
        self.session = session
        self._reserve = reserve  # decode steps or tokens still to come
        kernel = "eager" if session.prefill == "eager" else "sdpa"
        self._ahead = session.queries_ahead(strategy)
        self.cache = cache or KVCache(
            strategy, session.spec.layers, kernel, lambda: Rotary.of(session.model), self._ahead
        )

    @property
    def seen_tokens(self) -> list[int]:
        """Tokens read so far, a row."""
        return list(self.cache.seen_tokens)

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]], reserve_tokens: int = 0) -> Tensor:
        """Read the prompts; logits `[batch, vocab]` after each row's last token."""
        if self.cache.seen_tokens:
            raise ValueError("prefill starts a batch; a batch that has read tokens is extended")
        self.cache.seen_tokens, self.cache.read_tokens = [0] * len(prompts), [0] * len(prompts)
        self.cache.row_seeds = [crc32(torch.as_tensor(row, dtype=torch.long).cpu().numpy()) for row in prompts]
        self._reserve = reserve_tokens
        return self._read("prefill", prompts, all_logits=False)

    @torch.no_grad()
    def extend(self, tokens: Sequence[Sequence[int]], all_logits: bool = False) -> Tensor | list[Tensor]:
        """Append several tokens a row and compress again; logits `[batch, vocab]`, or one `[tokens, vocab]` a row."""
        if not self.cache.seen_tokens:
            raise ValueError("extend continues a batch; an empty one is prefilled")
        self._reserve = max(0, self._reserve - max(len(row) for row in tokens))
        return self._read("extend", tokens, all_logits)

    @torch.no_grad()
    def decode(self, tokens: Tensor | Sequence[int]) -> Tensor:
        """Append one token a row; logits `[batch, vocab]`."""
        ids = torch.as_tensor(tokens, device=self.session.device).reshape(-1, 1)
        positions = torch.tensor(self.cache.seen_tokens, device=self.session.device)[:, None]
        self._reserve = max(0, self._reserve - 1)
        self.cache.begin(Call("decode", [1] * len(ids), positions, last=True))
        with self._ahead or nullcontext():
            return self._forward(ids, positions, 1)[:, 0]

    def fork(self) -> TorchSequences:
        """An independent copy."""
        return TorchSequences(self.session, self.cache.strategy, self.cache.fork(), self._reserve)

    def kept_positions(self) -> list[Tensor]:
        """Per layer `[batch, kv_heads, slots]`, ascending, -1 in unused slots."""
        return [layer.kept_positions() for layer in self.cache.layers]

    def bytes_by_metric(self) -> dict[str, int]:
        """Exact tensor bytes now."""
        return self.cache.bytes_by_metric()

    def fetched(self) -> list[FetchLog]:
        """What decode steps fetched so far, a layer; empty where nothing is ever fetched."""
        return [layer.log for layer in self.cache.layers if hasattr(layer, "log")]

    def time_parts(self) -> StepTimer:
        """From here on, time what decode steps spend on speculating, gathering, copying and waiting."""
        self.cache.timer = StepTimer(self.session.device)
        return self.cache.timer

    def _read(self, phase: str, rows: Sequence[Sequence[int]], all_logits: bool) -> Tensor | list[Tensor]:
        lengths = [len(row) for row in rows]
        if len(rows) != len(self.cache.seen_tokens) or min(lengths) == 0:
            raise ValueError(f"expected {len(self.cache.seen_tokens)} non-empty rows, got lengths {lengths}")
        longest = max(lengths)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.as_tensor(row)
        ids = ids.to(self.session.device)
        first = torch.tensor(self.cache.seen_tokens, device=ids.device)[:, None]
        chunk = self._chunk_tokens(longest)
        final_seen = max(seen + length for seen, length in zip(self.cache.seen_tokens, lengths, strict=True))
        steps = max(1, self._reserve)
        self.cache.plan_capacity(final_seen, steps, least=self._slots_while_reading(longest, final_seen))
        parts = []
        for start in range(0, longest, chunk):
            positions = first + torch.arange(start, min(start + chunk, longest), device=ids.device)
            new = [min(max(length - start, 0), positions.shape[1]) for length in lengths]
            last = start + chunk >= longest
            if last:
                self.cache.plan_capacity(final_seen, steps)
            self.cache.begin(Call(phase, new, positions, last, monolithic=phase == "prefill" and chunk >= longest))
            keep = 0 if all_logits else torch.tensor([[max(count - 1, 0)] for count in new], device=ids.device)
            parts.append(self._forward(ids[:, start : start + chunk], positions, keep))
        if all_logits:
            joined = torch.cat(parts, 1)
            return [joined[row, :length] for row, length in enumerate(lengths)]
        ends = [(length - 1) // chunk for length in lengths]
        return torch.stack([parts[end][row, 0] for row, end in enumerate(ends)])

    def _chunk_tokens(self, longest: int) -> int:
        """Tokens a call reads: the strategy's chunks are part of what it is, the engine's are not."""
        own = self.cache.strategy.chunk_tokens
        return own or (self.session.chunk_tokens if self.session.prefill == "chunked" else longest)

    def _slots_while_reading(self, longest: int, final_seen: int) -> int:
        """All that is read, or what a strategy keeps after a chunk and the next chunk."""
        strategy, held = self.cache.strategy, self.cache.slots
        if strategy.chunk_tokens is None:
            return held + longest
        return min(held + longest, max(held, strategy.kept_tokens(final_seen)) + strategy.chunk_tokens)

    def _forward(self, ids: Tensor, positions: Tensor, logits_to_keep: int | Tensor) -> Tensor:
        out = self.session.model(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=logits_to_keep, kv_cache=self.cache
        )
        return out.logits
