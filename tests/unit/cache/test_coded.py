"""Layers of codes: what follows eviction, what fork copies, what every call leaves behind."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.cache.channel_coded import ChannelCodedLayer
from kvfrontier.cache.coded import VectorCodedLayer
from kvfrontier.cache.codes import pack, unpack
from kvfrontier.registry import STRATEGIES

HEAD_DIM = 8


def layer_of(kind):
    return ChannelCodedLayer(4, 4, 8) if kind == "kivi" else VectorCodedLayer(STRATEGIES.get(kind)())


def call(layer, start, new, lengths=None, last=True, seed=0):
    """Add tokens as a call does; their keys and values."""
    generator = torch.Generator().manual_seed(100 * seed + start)
    batch = len(lengths or [0])
    keys, values = (torch.randn(batch, 2, new, HEAD_DIM, generator=generator) for _ in range(2))
    layer.append(keys, values, torch.arange(start, start + new).expand(batch, new), lengths or [new])
    if last:
        layer.settle()
    return keys, values


KINDS = pytest.mark.parametrize("kind", ["int8", "int4_group", "fp8", "kivi"])
BY_VECTOR = pytest.mark.parametrize("kind", ["int8", "int4_group", "fp8"])


@KINDS
def test_between_calls_only_codes_are_held_and_during_one_they_are_read_back(kind):
    layer = layer_of(kind)
    keys, _ = call(layer, 0, 24)
    assert layer.keys is None and layer.values is None
    assert layer.used_bytes() <= layer.reserved_bytes() < keys.nbytes * 2
    later, _ = call(layer, 24, 3, last=False)
    found = layer.used()[0]
    assert torch.equal(found[:, :, 24:], later), "a call's own tokens are as they came"
    # The largest step of 4-bit codes is a fifteenth of a range of about six, of fp8 a sixteenth of three.
    assert 0 < (found[:, :, :16] - keys[:, :, :16]).abs().max() < 0.3


@KINDS
def test_chunks_see_each_other_as_they_came(kind):
    layer = layer_of(kind)
    first, _ = call(layer, 0, 16, last=False)
    second, _ = call(layer, 16, 16, last=False)
    assert torch.equal(layer.used()[0], torch.cat((first, second), 2))


@BY_VECTOR
def test_codes_follow_what_is_kept_and_dropped(kind):
    layer = layer_of(kind)
    layer.target_capacity = 12
    call(layer, 0, 10)
    before = {name: tensor.clone() for name, tensor in layer.aux.items()}
    call(layer, 10, 2, last=False)
    layer.drop(torch.tensor([[3, 11]]))
    layer.keep(torch.tensor([[[0, 3, 9], [2, 4, 10]]]), torch.tensor([[3, 2]]))
    layer.settle()
    assert layer.kept_positions().tolist() == [[[0, 9, 11], [2, 4, -1]]]
    for name, tensor in layer.aux.items():
        assert torch.equal(tensor[0, 0, [0, 2]], before[name][0, 0, [0, 9]])
        assert torch.equal(tensor[0, 1, :2], before[name][0, 1, [2, 4]])
    assert layer.used_bytes() == 5 * sum(tensor[0, 0, 0].nbytes for tensor in before.values())


class Counting:
    """Codes that are the vectors themselves, and how many were made."""

    made = 0

    def encode(self, vectors):
        self.made += len(vectors)
        return (vectors.clone(),)

    def decode(self, parts, head_dim, dtype):
        return parts[0].to(dtype)


def test_a_token_is_coded_once_and_only_if_it_survives_its_call():
    layer = VectorCodedLayer(Counting())
    keys, values = torch.randn(2, 1, 2, 9, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    layer.borrow(keys, values, torch.arange(9)[None], [9])
    layer.keep(torch.tensor([[[1, 4, 8], [0, 2, 8]]]), torch.tensor([[3, 3]]))
    layer.settle()
    assert layer.codec.made == 2 * (3 + 3)
    call(layer, 9, 2, last=False)
    layer.drop(torch.tensor([[4, 0]]))
    layer.settle()
    assert layer.codec.made == 2 * (6 + 1 + 2)
    assert torch.equal(layer._decode()[0][0, 1, 1], keys[0, 1, 2])


@KINDS
def test_a_fork_shares_nothing(kind):
    layer = layer_of(kind)
    layer.target_capacity = 40
    call(layer, 0, 21)
    before = [tensor.clone() for tensor in layer._decode()]
    fork = layer.fork()
    for step in range(12):
        call(fork, 21 + step, 1)
    assert layer.slots == 21 and fork.slots == 33
    assert all(map(torch.equal, before, layer._decode()))


@KINDS
def test_growing_beyond_the_reservation_loses_nothing(kind):
    grown, reserved = layer_of(kind), layer_of(kind)
    reserved.target_capacity = 64
    for layer in (grown, reserved):
        call(layer, 0, 9)
        for step in range(30):
            call(layer, 9 + step, 1)
    for a, b in zip(grown._decode(), reserved._decode(), strict=True):
        assert torch.equal(a[:, :, :39], b[:, :, :39])
    assert grown.used_bytes() == reserved.used_bytes()


@KINDS
def test_rows_of_unequal_length_never_share_a_group(kind):
    batch, alone = layer_of(kind), layer_of(kind)
    keys, values = call(batch, 0, 21, lengths=[21, 13])
    alone.append(keys[1:, :, :13], values[1:, :, :13], torch.arange(13)[None], [13])
    alone.settle()
    for both, one in zip(batch._decode(), alone._decode(), strict=True):
        assert torch.equal(both[1, :, :13], one[0, :, :13])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("count", [1, 3, 4, 8, 13])
def test_packing_is_undone_by_unpacking(bits, count):
    codes = torch.randint(0, 2**bits, (5, 3, count), generator=torch.Generator().manual_seed(count)).to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8 and packed.shape[-1] == -(-count * bits // 8)
    assert torch.equal(unpack(packed, bits, count), codes)
