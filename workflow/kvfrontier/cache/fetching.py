"""A host pool of which a decode step fetches some tokens: gathered in host memory, copied over the link, read."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from kvfrontier.cache.fetch_log import FetchLog
from kvfrontier.cache.host_pool import HostPool
from kvfrontier.cache.link import Link, Transfer, host_empty
from kvfrontier.cache.step_timer import StepTimer

Overlap = Literal["none", "copy", "layer"]
Where = tuple[Tensor, Tensor, Tensor]  # (row, head, place)
HELD = "held"  # of each slot: its place in the buffer and 1, or 0 where it is not there


class FetchingPool(HostPool):
    """`start` begins a step's fetch, at best while an earlier layer computes; `attend_chosen` ends it.

    overlap: what the link's own thread does: nothing (`start` returns when all is there), the copy, or gather and copy.
    keeps: the last step's tokens stay on the device, and the next step fetches only others.
    page: what is fetched moves in runs of so many slots, of which attention still reads the chosen ones alone.
    """

    def __init__(self, link: Link, overlap: Overlap = "none", keeps: bool = False, page: int = 1):
        super().__init__(link, page)
        self.overlap, self.keeps, self.log = overlap, keeps, FetchLog()
        self.room: list[int] = []  # places of the buffer for chosen tokens, a row
        self.chosen: tuple[Tensor, Tensor] | None = None  # slots and counts of the step that comes or runs
        self.attended: Tensor | None = None  # places in use of a decode step's buffer [batch, kv_heads]
        self.early: tuple[Tensor, Tensor] | None = None  # rows, and of each slot its place among them and 1
        self.coming: list[Transfer] = []
        self.parts: list[tuple[Where, Tensor, Tensor | None]] = []  # places of the buffer take these of those rows

    def used(self) -> tuple[Tensor, Tensor]:
        """Keys and values that this call attends to."""
        if self.attended is None:
            return super().used()
        return self._split(self.buffer[:, :, : int(self.attended.max())])

    def valid(self) -> Tensor | None:
        """As in LayerCache, for what `used` gives."""
        if self.attended is None:
            return super().valid()
        width = int(self.attended.max())
        if bool((self.attended == width).all()):
            return None
        return (torch.arange(width) < self.attended[..., None]).to(self.buffer.device)

    def available(self) -> Tensor:
        """Tokens that the pool held before this step `[batch, kv_heads]`."""
        return self.counts.clone() if self.new is None else self.new[2]

    def start(self, slots: Tensor, counts: Tensor, room: list[int], timer: StepTimer) -> None:
        """Begin to fetch for a decode step: slots `[batch, kv_heads, n]`, ascending, the first `counts` of each head.

        counts: `[batch, kv_heads]` on the CPU, the largest is n. room: the most that each row might choose.
        """
        wanted = torch.arange(slots.shape[2]) < counts[..., None]
        kept = torch.zeros_like(wanted)
        old, self.buffer = self.buffer, self._device_empty(*counts.shape, 1 + max(room), self.width)
        if not bool(wanted.all()):
            self.buffer.zero_()  # a masked place has weight 0, and 0 x NaN would be NaN
        if self.keeps and old is not None:
            held = self.aux[HELD].gather(2, slots).long()
            kept = wanted & (held > 0).cpu()
            where = _where(kept, slots.device)
            self.buffer[where] = old[where[0], where[1], held[where] - 1]
        available = self.available()
        self.log.add_step(available, counts, kept.sum(-1))
        self.chosen, self.room = (slots, counts), room
        self._bring(slots, wanted & ~kept, bool((counts == available).all()), timer)

    def _bring(self, slots: Tensor, missing: Tensor, whole: bool, timer: StepTimer) -> None:
        if self.early is not None:
            rows, index = self.early
            place = index.gather(2, slots.cpu())
            where = _where(missing & (place > 0))
            self.parts.append((_on(where, slots.device), rows, (place[where] - 1).to(slots.device)))
            missing, self.early = missing & (place == 0), None
        if bool(missing.all()) and self.page == 1:
            out = self.buffer[:, :, : slots.shape[2]]
            self._transfer(None if whole else self._flat(slots, _where(missing)), out, timer)
        elif bool(missing.any()):
            where = _where(missing)
            self.parts.append((_on(where, slots.device), *self._fetch_rows(slots, where, timer)))

    def start_early(self, slots: Tensor, counts: Tensor, timer: StepTimer) -> None:
        """Begin to fetch what a step may choose, before `start` says what it does choose; arguments as there."""
        wanted = torch.arange(slots.shape[2]) < counts[..., None]
        if self.keeps and self.buffer is not None:
            wanted &= (self.aux[HELD].gather(2, slots) == 0).cpu()
        where = _where(wanted)
        if len(where[0]):
            rows, pick = self._fetch_rows(slots, where, timer)
            index = torch.zeros(self.positions.shape, dtype=torch.long)
            place = torch.arange(len(where[0])) if pick is None else pick.cpu()
            index[where[0], where[1], slots.cpu()[where]] = place + 1
            self.early = rows, index

    def attend_chosen(self, timer: StepTimer) -> None:
        """Wait for what `start` began, and attend to it and to the step's own token, which comes last."""
        with timer.part("wait"):
            for transfer in self.coming:
                transfer.wait()
        for where, rows, pick in self.parts:
            flat = rows.view(-1, self.width)
            self.buffer[where] = flat if pick is None else flat[pick]
        self.coming, self.parts = [], []
        counts, device = self.chosen[1], self.buffer.device
        keys, values = self.new[:2]
        at = counts.to(device)[..., None, None].expand(-1, -1, 1, self.width)
        self.buffer.scatter_(2, at, torch.cat((keys, values), -1))
        self.attended = counts + 1
        if self.keeps:
            self._note_held()

    def _note_held(self) -> None:
        slots, counts = self.chosen
        held = self.aux[HELD] = torch.zeros_like(self.positions)
        row, head, place = _where(torch.arange(slots.shape[2]) < counts[..., None], slots.device)
        held[row, head, slots[row, head, place]] = (place + 1).to(held.dtype)
        held.scatter_(2, (self.counts - 1).to(held.device)[..., None], (counts + 1).to(held)[..., None])

    def let_go(self) -> None:
        """The device keeps no tokens, or those of the last decode step."""
        if self.attended is None or not self.keeps:
            self.buffer = None
        self.attended = self.chosen = None

    def used_bytes(self) -> int:
        """Bytes on the device: places for the most that each row might choose, and for the step's own token."""
        if self.borrowed or self.buffer is None:
            return super().used_bytes()
        return sum(1 + room for room in self.room) * self.buffer[0, :, 0].nbytes

    def _device_empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.pool.dtype, device=self.positions.device)

    def _flat(self, slots: Tensor, where: Where) -> Tensor:
        """Number of these slots among all slots of the pool."""
        row, head, _ = where
        return (row * self.pool.shape[1] + head) * self.pool.shape[2] + slots.cpu()[where]

    def _fetch_rows(self, slots: Tensor, where: Where, timer: StepTimer) -> tuple[Tensor, Tensor | None]:
        """Begin to fetch these slots: rows that will hold them, and which of those they are (None: all, in order)."""
        runs, pick = self._flat(slots, where), None
        if self.page > 1:
            tokens = runs
            runs, run = torch.unique(tokens // self.page, return_inverse=True)
            pick = (run * self.page + tokens % self.page).to(slots.device)
        rows = self._device_empty(len(runs), self.page * self.width)
        self._transfer(runs, rows, timer)
        return rows, pick

    def _transfer(self, runs: Tensor | None, out: Tensor, timer: StepTimer) -> None:
        """Gather runs of the pool in host memory (None: its first slots as they lie) and copy them to `out`."""
        source = self.pool[:, :, : out.shape[2]] if runs is None else host_empty(out.shape, out)
        flat = self.pool.view(-1, self.page * self.width)  # now: the pool may move while the link's thread is at work
        self.log.copied_bytes += out.nbytes

        def gather() -> None:
            if runs is not None:
                with timer.part("gather"):
                    torch.index_select(flat, 0, runs, out=source.view(len(runs), -1))

        def copy() -> None:
            with timer.part("copy"):
                self.link.fetch(source, out)

        def both() -> None:
            gather()
            copy()

        if self.overlap != "layer":
            gather()
        if self.overlap == "none":
            copy()
        else:
            self.coming.append(self.link.submit(copy if self.overlap == "copy" else both, out.device))


def _where(mask: Tensor, device: torch.device | str = "cpu") -> Where:
    return _on(mask.nonzero(as_tuple=True), device)


def _on(where: Where, device: torch.device | str) -> Where:
    return tuple(index.to(device) for index in where)
