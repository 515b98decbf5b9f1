"""A batch that decodes on a loaded transformers model: the engine's own loop, token ids in, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING
from zlib import crc32

import torch
from torch import Tensor

from kvfrontier.cache.fetch_log import FetchLog
from kvfrontier.cache.kv import Call, KVCache
from kvfrontier.cache.notes import OF_WORKLOAD
from kvfrontier.cache.rotary import Rotary
from kvfrontier.cache.step_timer import StepTimer
from kvfrontier.engines._token_notes import SURPRISAL_CHUNK, NoteTaker, note_surprisal, reading_spans
from kvfrontier.engines.base import Notes, Sequences
from kvfrontier.errors import Unsupported
from kvfrontier.strategies.base import Strategy

if TYPE_CHECKING:
    from kvfrontier.engines._torch_session import TorchSession


class TorchSequences(Sequences):
    """A batch over one KV cache. Rows of unequal length are padded on the right, and padding is never stored."""

    def __init__(self, session: TorchSession, strategy: Strategy, cache: KVCache | None = None, reserve: int = 0):
        self.session = session
        self._reserve = reserve  # decode steps or tokens still to come
        kernel = "eager" if session.prefill == "eager" else "sdpa"
        self._ahead = session.queries_ahead(strategy)
        windows = session.spec.windows or [None] * session.spec.layers
        self.cache = cache or KVCache(strategy, windows, kernel, lambda: Rotary.of(session.model), self._ahead)
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
