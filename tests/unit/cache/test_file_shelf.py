"""Files of a layer: without a name, closed when nobody needs them, and told from one another by their layout."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from kvfrontier.cache import file_shelf
from kvfrontier.cache.file_shelf import BLOCK, FileShelf, Layout, NamelessFile
from kvfrontier.cache.file_system import temporary_file_system
from kvfrontier.cache.link import Link
from kvfrontier.errors import Unsupported

COUNTS = torch.tensor([[3, 3], [1, 2]])


def filled(direct=False, seed=0):
    """A shelf with keys in float32 and codes in one byte, and what it was given."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(2, 2, 5, 8, generator=generator),
        torch.randint(0, 9, (2, 2, 5, 3), generator=generator).byte(),
    ]
    shelf = FileShelf(Link(), direct)
    shelf.put(tensors, [COUNTS, COUNTS], None).wait()
    return shelf, tensors


def brought(shelf):
    tensors, transfer = shelf.get()
    transfer.wait()
    return tensors


def assert_used_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        for row in range(2):
            for head in range(2):
                used = slice(0, int(COUNTS[row, head]))
                assert torch.equal(one[row, head, used], other[row, head, used])
                assert not one[row, head, used.stop :].any(), "unused entries are zero"


def test_the_file_has_no_name_and_is_closed_with_its_shelf(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shelf, _ = filled()
    descriptor = Path(f"/proc/self/fd/{shelf.file.fd}")
    assert str(tmp_path) in os.readlink(descriptor) and "deleted" in os.readlink(descriptor)
    assert list(tmp_path.iterdir()) == []
    del shelf
    gc.collect()
    assert not descriptor.exists() or str(tmp_path) not in os.readlink(descriptor)


@pytest.mark.parametrize("direct", [False, True])
def test_what_was_put_comes_back_and_only_used_bytes_are_counted(direct):
    shelf, tensors = filled(direct)
    assert_used_equal(brought(shelf), tensors)
    used = 9 * (8 * 4 + 3)
    assert shelf.disk_bytes() == used and shelf.host_bytes() == 0
    assert shelf.reserved_bytes() == os.fstat(shelf.file.fd).st_size == 2 * BLOCK
    copied = 2 * BLOCK if direct else used
    assert (shelf.link.stored_bytes, shelf.link.fetched_bytes) == (copied, copied)


@pytest.mark.parametrize("direct", [False, True])
def test_only_what_is_new_is_written_over_the_rest(direct):
    shelf, tensors = filled(direct)
    found = brought(shelf)
    new = torch.zeros(2, 2, 5, dtype=torch.bool)
    new[0, 1, 2] = new[1, 0, 0] = True
    for tensor, mine in zip(found, tensors, strict=True):
        tensor[new] = mine[new] = 7
    stored = shelf.link.stored_bytes
    shelf.put(found, [COUNTS, COUNTS], [new, new]).wait()
    assert shelf.link.stored_bytes - stored == (2 * BLOCK if direct else 2 * (8 * 4 + 3))
    assert_used_equal(brought(shelf), tensors)


def test_tensors_of_another_shape_are_written_anew():
    shelf, tensors = filled()
    grown = [torch.nn.functional.pad(tensor, (0, 0, 0, 900)) for tensor in brought(shelf)]
    shelf.put(grown, [COUNTS, COUNTS], [torch.zeros(2, 2, 905, dtype=torch.bool)] * 2).wait()
    assert shelf.reserved_bytes() == os.fstat(shelf.file.fd).st_size > 2 * BLOCK
    assert_used_equal(brought(shelf), tensors)


@pytest.mark.parametrize("direct", [False, True])
def test_a_copy_has_a_file_of_its_own(direct):
    shelf, tensors = filled(direct)
    copy = deepcopy(shelf)
    assert copy.file.fd != shelf.file.fd and copy.file.direct == direct
    shelf.put([torch.ones_like(tensor) for tensor in tensors], [COUNTS, COUNTS], None).wait()
    assert_used_equal(brought(copy), tensors)
    assert copy.link.stored_bytes == shelf.link.stored_bytes / 2


def test_ranges_join_where_they_touch_and_round_outwards():
    layout = Layout((torch.Size((1, 2, 100, 16)),), (torch.float32,))
    mask = torch.zeros(1, 2, 100, dtype=torch.bool)
    mask[0, 0, 98:] = mask[0, 1, :3] = mask[0, 1, 50] = True
    assert layout.ranges([mask], 1) == [(98 * 64, 103 * 64), (150 * 64, 151 * 64)]
    assert layout.ranges([mask], BLOCK) == [(BLOCK, 3 * BLOCK)]
    assert layout.ranges([torch.zeros_like(mask)], BLOCK) == []


@pytest.mark.parametrize("what", ["fcntl", "write"])
def test_a_file_system_without_direct_transfers_is_unsupported_with_the_reason(what, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(*((file_shelf, "fcntl") if what == "fcntl" else (NamelessFile, "write")), refuse)
    with pytest.raises(Unsupported, match=r"refuses direct transfers \(O_DIRECT\): .*Invalid argument"):
        FileShelf(Link(), direct=True)
    NamelessFile(direct=False)


def test_a_disk_that_is_full_is_an_error_where_the_store_is_waited_for(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    shelf, tensors = filled()
    monkeypatch.setattr(os, "pwritev", full)
    transfer = shelf.put(tensors, [COUNTS, COUNTS], None)
    with pytest.raises(OSError, match="No space left"):
        transfer.wait()


def test_a_file_that_ends_early_is_an_error():
    shelf, _ = filled()
    os.ftruncate(shelf.file.fd, 10)
    with pytest.raises(EOFError, match="ends at byte 10"):
        brought(shelf)


def test_the_file_system_is_that_of_the_longest_mount_point(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "x"))
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"a / overlay rw 0 0\nb {tmp_path} xfs rw 0 0\nc {tmp_path}/x tmpfs rw 0 0\nd /proc proc rw 0 0\n"
    )
    (tmp_path / "x").mkdir()
    assert temporary_file_system(str(mounts)) == "tmpfs"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert temporary_file_system(str(mounts)) == "xfs"
    assert temporary_file_system(str(tmp_path / "none")) == "unknown"
