"""Which tokens stay is told by the bits of their keys."""

import torch
from kvfrontier.engines import _kept
from kvfrontier.engines._kept import codes, find


def test_kept_keys_are_found_whatever_their_order_and_type(monkeypatch):
    monkeypatch.setattr(_kept, "BLOCK", 7)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        keys = torch.randn(2, 3, 40, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
        kept = torch.rand(2, 3, 40, generator=torch.Generator().manual_seed(2)).argsort(-1)[..., :11]
        found = find(codes(keys.gather(2, kept[..., None].expand(-1, -1, -1, 8))), codes(keys))
        assert torch.equal(found, kept)


def test_nothing_is_told_where_keys_were_changed_or_are_the_same():
    keys = torch.randn(1, 1, 10, 4, generator=torch.Generator().manual_seed(3))
    assert find(codes(keys[:, :, :3] + 1e-6), codes(keys)) is None
    assert find(codes(keys[:, :, :3]), codes(torch.cat((keys, keys[:, :, :1]), 2))) is None
