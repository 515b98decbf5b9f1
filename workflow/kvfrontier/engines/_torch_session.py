"""A transformers model and the batches that decode on it: the engine's own loop, token ids in, logits out."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any, Literal
from zlib import crc32

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvfrontier.cache.interface import ATTENTION
from kvfrontier.cache.kv import Call, KVCache
from kvfrontier.cache.notes import OF_WORKLOAD
from kvfrontier.cache.rotary import Rotary
from kvfrontier.engines._memory import MemoryLimit, PeakMemory
from kvfrontier.engines._token_notes import SURPRISAL_CHUNK, NoteTaker, note_surprisal, reading_spans
from kvfrontier.engines._torch_model import check_model, spec_of
from kvfrontier.engines.base import Generation, Notes, Sequences, Session, require_open_layers
from kvfrontier.errors import Unsupported
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

    def open(self, strategy: Strategy) -> TorchSequences:
        """An empty batch under `strategy`; raises Unsupported where the model cannot do what the strategy requires."""
        require_open_layers(strategy, self.spec)
        if "rotation" in strategy.requires():
            Rotary.of(self.model)
        self._limit.renew()
        return TorchSequences(self, strategy)

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
        )

    def close(self) -> None:
        """Give the model its own attention back and let go of it."""
        if self.model is not None:
            self.model.set_attn_implementation(self._model_attention)
        self.memo.clear()
        self.model = None
        self._limit.lift()
        self.free_unused()

    def free_unused(self) -> None:
        """Give back what nothing refers to any more, as after an allocation that failed."""
        gc.collect()
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
        element, whole = self.model.dtype.itemsize, self.spec.open_part()
        tensors = sequences.bytes_by_metric()
        in_windows = sum(self.spec.window_bytes(len(row) + steps, element) for row in prompts)
        by_formula = (sequences.cache.strategy.kv_bytes(whole, element, len(row), steps) for row in prompts)
        tensors["kv_formula_bytes"] = in_windows + sum(by_formula)
        all_tokens = sum(len(row) + steps for row in prompts)
        tensors["kv_full_bytes"] = in_windows + all_tokens * whole.kv_bytes_per_token(element)
        return [(metric, phase, float(size)) for metric, size in tensors.items()] + peak.readings(phase)


class TorchSequences(Sequences):
    """A batch over one KV cache. Rows of unequal length are padded on the right, and padding is never stored."""

    def __init__(self, session: TorchSession, strategy: Strategy, cache: KVCache | None = None, reserve: int = 0):
        self.session = session
        self._reserve = reserve  # decode steps or tokens still to come
        kernel = "eager" if session.prefill == "eager" else "sdpa"
        windows = session.spec.windows or [None] * session.spec.layers
        self.cache = cache or KVCache(strategy, windows, kernel, lambda: Rotary.of(session.model))
        self._notes = NoteTaker(session.tokenizer, strategy.requires(), session.memo.setdefault("pieces", {}))

    @property
    def seen_tokens(self) -> list[int]:
        """Tokens read so far, a row."""
        return list(self.cache.seen_tokens)

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]], reserve_tokens: int = 0, notes: Sequence[Notes] = ()) -> Tensor:
        """Read the prompts; logits `[batch, vocab]` after each row's last token."""
        self._start(prompts, notes)
        self._reserve = reserve_tokens
        return self._read("prefill", prompts, False, notes)

    @torch.no_grad()
    def score(self, rows: Sequence[Sequence[int]], last: int) -> Tensor:
        """Read whole rows of one length at once; logits `[batch, last, vocab]` of their last tokens."""
        self._start(rows, ())
        ids = torch.as_tensor(rows, device=self.session.device)
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        self.cache.plan_capacity(ids.shape[1], 1, ids.shape[1], ids.shape[1])
        self.cache.begin(Call("prefill", [ids.shape[1]] * len(ids), positions, last=True, monolithic=True))
        return self._forward(ids, positions, last)

    def _start(self, prompts: Sequence[Sequence[int]], notes: Sequence[Notes]) -> None:
        if self.cache.seen_tokens:
            raise ValueError("prefill starts a batch; a batch that has read tokens is extended")
        self.cache.seen_tokens, self.cache.read_tokens = [0] * len(prompts), [0] * len(prompts)
        self.cache.row_seeds = [crc32(torch.as_tensor(row, dtype=torch.long).cpu().numpy()) for row in prompts]
        self.cache.notes = [{} for _ in prompts]
        untold = sorted(
            kind for kind in self._notes.wanted & OF_WORKLOAD if any(kind not in row for row in notes or [{}])
        )
        if untold:
            raise Unsupported(f"nobody tells the {' and '.join(untold)} of these prompts")

    @torch.no_grad()
    def extend(
        self, tokens: Sequence[Sequence[int]], all_logits: bool = False, notes: Sequence[Notes] = ()
    ) -> Tensor | list[Tensor]:
        """Append several tokens a row and compress again; logits `[batch, vocab]`, or one `[tokens, vocab]` a row."""
        if not self.cache.seen_tokens:
            raise ValueError("extend continues a batch; an empty one is prefilled")
        self._reserve = max(0, self._reserve - max(len(row) for row in tokens))
        return self._read("extend", tokens, all_logits, notes)

    @torch.no_grad()
    def decode(self, tokens: Tensor | Sequence[int]) -> Tensor:
        """Append one token a row; logits `[batch, vocab]`."""
        ids = torch.as_tensor(tokens, device=self.session.device).reshape(-1, 1)
        positions = torch.tensor(self.cache.seen_tokens, device=self.session.device)[:, None]
        self._reserve = max(0, self._reserve - 1)
        if self._notes.wanted:  # reading ids waits for the device
            self._note(ids.tolist())
        self.cache.begin(Call("decode", [1] * len(ids), positions, last=True))
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

    def _note(self, rows: Sequence[Sequence[int]], told: Sequence[Notes] = ()) -> None:
        for notes, row, said in zip(self.cache.notes, rows, told or [{}] * len(rows), strict=True):
            self._notes.add(notes, row, said)

    def _read(
        self, phase: str, rows: Sequence[Sequence[int]], all_logits: bool, notes: Sequence[Notes]
    ) -> Tensor | list[Tensor]:
        lengths = [len(row) for row in rows]
        if len(rows) != len(self.cache.seen_tokens) or min(lengths) == 0:
            raise ValueError(f"expected {len(self.cache.seen_tokens)} non-empty rows, got lengths {lengths}")
        longest = max(lengths)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.as_tensor(row)
        ids = ids.to(self.session.device)
        before = list(self.cache.seen_tokens)
        first = torch.tensor(before, device=ids.device)[:, None]
        chunk = self._chunk_tokens(longest)
        final_seen = max(seen + length for seen, length in zip(self.cache.seen_tokens, lengths, strict=True))
        steps = max(1, self._reserve)
        self.cache.plan_capacity(final_seen, steps, longest, chunk)
        self._note(rows, notes)
        surprised = "surprisal" in self._notes.wanted
        parts = []
        for start, end in (spans := reading_spans(longest, chunk, surprised)):
            positions = first + torch.arange(start, end, device=ids.device)
            new = [min(max(length - start, 0), end - start) for length in lengths]
            last = end == longest
            if last:
                self.cache.plan_capacity(final_seen, steps)
            self.cache.begin(Call(phase, new, positions, last, monolithic=phase == "prefill" and len(spans) == 1))
            keep = torch.tensor([[max(count - 1, 0)] for count in new], device=ids.device)
            logits = self._forward(ids[:, start:end], positions, 0 if all_logits or surprised else keep)
            if surprised:
                note_surprisal(self.cache.notes, logits, ids, before, lengths, start)
                logits = logits if all_logits else logits.gather(1, keep[..., None].expand(-1, -1, logits.shape[2]))
            parts.append(logits)
        if all_logits:
            joined = torch.cat(parts, 1)
            return [joined[row, :length] for row, length in enumerate(lengths)]
        ends = [next(place for place, (_, end) in enumerate(spans) if length <= end) for length in lengths]
        return torch.stack([parts[end][row, 0] for row, end in enumerate(ends)])

    def _chunk_tokens(self, longest: int) -> int:
        """Tokens a call reads: the strategy's chunks are part of what it is, the engine's are not."""
        chunk = self.session.chunk_tokens if self.session.prefill == "chunked" else longest
        if "surprisal" in self._notes.wanted:
            chunk = min(chunk, SURPRISAL_CHUNK)
        return self.cache.strategy.chunk_tokens or chunk

    def _forward(self, ids: Tensor, positions: Tensor, logits_to_keep: int | Tensor) -> Tensor:
        out = self.session.model(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=logits_to_keep, kv_cache=self.cache
        )
        return out.logits
