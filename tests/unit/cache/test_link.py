"""Copies between two memories: bytes are counted, a rate is kept, and what runs beside the caller runs in order."""

from __future__ import annotations

from copy import deepcopy
from threading import Event, current_thread, get_ident
from time import monotonic

import pytest
import torch
from kvfrontier.cache.link import Link

CPU = torch.device("cpu")


def test_each_direction_counts_the_bytes_it_copied():
    link, host, device = Link(), torch.arange(12.0).view(3, 4), torch.zeros(3, 4)
    link.fetch(host[:2], device[:2])
    link.store(device[:1], host[2:])
    assert device.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [0] * 4] and host[2].tolist() == [0, 1, 2, 3]
    assert (link.fetched_bytes, link.stored_bytes) == (2 * 4 * 4, 4 * 4)


@pytest.mark.parametrize("out", [torch.zeros(4), torch.zeros(3, dtype=torch.float64)], ids=["shape", "type"])
def test_a_copy_converts_nothing(out):
    link = Link()
    with pytest.raises(ValueError, match="copies as it is"):
        link.fetch(torch.zeros(3), out)
    assert link.fetched_bytes == 0


def test_an_emulated_link_takes_as_long_as_its_rate_says_for_all_that_crossed_it():
    link, source = Link(gigabytes_per_s=0.001), torch.zeros(10_000, dtype=torch.uint8)
    start = monotonic()
    first = link.fetch_async(source, torch.empty_like(source))
    link.store(source, torch.empty_like(source))
    first.wait()
    assert monotonic() - start >= 0.02


def test_asynchronous_work_runs_in_order_on_one_thread_beside_the_caller():
    link, go, done = Link(), Event(), []
    first = link.submit(lambda: (go.wait(), done.append(get_ident())), CPU)
    second = link.submit(lambda: done.append(get_ident()), CPU)
    assert done == []
    go.set()
    second.wait()
    first.wait()
    assert len(done) == 2 and len(set(done)) == 1 and done[0] != get_ident()


def test_draining_waits_for_all_that_was_submitted():
    link, go, done = Link(), Event(), []
    link.drain()
    link.submit(go.wait, CPU)
    link.submit(lambda: done.append(1), CPU)
    go.set()
    link.drain()
    assert done == [1]


def test_its_thread_ends_with_it():
    link, thread = Link(), []
    link.submit(lambda: thread.append(current_thread()), CPU).wait()
    assert thread[0].is_alive()
    del link
    thread[0].join(timeout=10)
    assert not thread[0].is_alive()


def test_what_goes_wrong_in_it_is_raised_where_it_is_waited_for():
    link = Link()
    transfer = link.fetch_async(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="copies as it is"):
        transfer.wait()


def test_work_of_another_kind_counts_where_it_belongs():
    link, done = Link(), []
    link.carry(7, lambda: done.append("read"))
    link.carry(5, lambda: done.append("written"), stored=True)
    assert done == ["read", "written"] and (link.fetched_bytes, link.stored_bytes) == (7, 5)


def test_a_copy_has_the_totals_and_counts_by_itself_from_then_on():
    link = Link(gigabytes_per_s=100.0)
    link.submit(lambda: link.fetch(torch.zeros(2), torch.zeros(2)), CPU).wait()
    copy = deepcopy([link, link])
    assert copy[0] is copy[1] and copy[0].gigabytes_per_s == 100.0
    copy[0].fetch(torch.zeros(2), torch.zeros(2))
    assert (link.fetched_bytes, copy[0].fetched_bytes) == (8, 16)
