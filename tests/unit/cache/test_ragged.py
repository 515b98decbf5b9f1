"""Heads of their own lengths in one buffer, against lists of tokens: nothing else is read, and nothing else is held."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvfrontier.cache.ragged import RaggedLayer

KEY_DIM, VALUE_DIM, SCALE = 4, 6, 0.7

turns = st.tuples(st.just("turn"), st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(0, 4))
steps = st.tuples(st.sampled_from(["step", "step", "fork", "drop"]), st.none(), st.none())


class Pair:
    """A layer, and what it must hold: of each row and head the position, key and value of each token."""

    def __init__(self, batch, kv_heads, group):
        self.layer, self.random = RaggedLayer(), torch.Generator().manual_seed(batch + kv_heads)
        self.told = [[[] for _ in range(kv_heads)] for _ in range(batch)]
        self.seen, self.group = [0] * batch, group

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.random, dtype=torch.float64)

    def append(self, lengths):
        batch, kv_heads, new = len(self.told), len(self.told[0]), max(lengths)
        keys, values = self.draw(batch, kv_heads, new, KEY_DIM), self.draw(batch, kv_heads, new, VALUE_DIM)
        positions = torch.tensor(self.seen)[:, None] + torch.arange(new)
        if self.layer.positions is None:
            self.layer.borrow(keys, values, positions, lengths)
        else:
            self.layer.append(keys, values, positions, lengths)
        for row, heads in enumerate(self.told):
            for head, tokens in enumerate(heads):
                told = zip(positions[row].tolist(), keys[row, head], values[row, head], strict=True)
                tokens.extend(list(told)[: lengths[row]])
        self.seen = [seen + length for seen, length in zip(self.seen, lengths, strict=True)]

    def read(self, lengths, growth):
        """A reading, after which every head keeps some of its tokens, and has room for `growth` more."""
        self.layer.growth = growth
        self.append(lengths)
        positions, counts = self.layer.used_positions(), self.layer.counts.clone()
        slots = torch.zeros_like(positions, dtype=torch.long)
        for row, heads in enumerate(self.told):
            for head, tokens in enumerate(heads):
                kept = torch.randperm(len(tokens), generator=self.random)[: 1 + (7 * row + 3 * head) % len(tokens)]
                slots[row, head, : len(kept)], counts[row, head] = kept, len(kept)
                stay = set(positions[row, head, kept].tolist())
                tokens[:] = [token for token in tokens if token[0] in stay]
        self.layer.keep(slots[:, :, : int(counts.max())], counts)
        self.layer.settle(shrink=True)

    def step(self, drop, sinks=None):
        self.append([1] * len(self.told))
        queries = self.draw(len(self.told), self.group * len(self.told[0]), 1, KEY_DIM)
        for with_mass in (False, True):
            out, mass = self.layer.attend(queries, SCALE, with_mass, sinks)
            self.compare(queries, sinks, out, mass)
        if drop:
            oldest = self.layer.used_positions().masked_fill(self.layer.used_positions() < 0, 10**6).argmin(-1)
            self.layer.drop(oldest)
            for heads in self.told:
                for tokens in heads:
                    tokens.remove(min(tokens, key=lambda token: token[0]))
        self.layer.settle()

    def compare(self, queries, sinks, out, mass):
        positions = self.layer.used_positions()
        for row, heads in enumerate(self.told):
            for q_head in range(queries.shape[1]):
                head = q_head // self.group
                tokens = heads[head]
                logits = [SCALE * float(queries[row, q_head, 0] @ key) for _, key, _ in tokens]
                beside = [] if sinks is None else [float(sinks[q_head])]
                weights = torch.tensor(logits + beside, dtype=torch.float64).softmax(0)[: len(tokens)].tolist()
                expected = sum(weight * value for weight, (_, _, value) in zip(weights, tokens, strict=True))
                torch.testing.assert_close(out[row, q_head, 0], expected)
                if mass is not None:
                    found = dict(zip(positions[row, head].tolist(), mass[row, q_head].tolist(), strict=True))
                    assert found.pop(-1, 0) == 0
                    assert found == pytest.approx({token[0]: w for token, w in zip(tokens, weights, strict=True)})

    def check(self):
        layer, counts = self.layer, [len(tokens) for heads in self.told for tokens in heads]
        assert layer.counts.flatten().tolist() == counts
        for heads, rows in zip(self.told, layer.kept_positions().tolist(), strict=True):
            for tokens, positions in zip(heads, rows, strict=True):
                assert [p for p in positions if p >= 0] == [token[0] for token in tokens]
        assert (layer.packed is None) == (len(set(counts)) == 1)
        if layer.packed is None:
            return
        rooms = [count + layer.spare for count in counts]
        memory = [part.untyped_storage().nbytes() for part in layer.packed]
        assert (
            memory == [sum(rooms) * KEY_DIM * 8, sum(rooms) * VALUE_DIM * 8] and sum(memory) == layer.reserved_bytes()
        )
        assert layer.used_bytes() == sum(counts) * (KEY_DIM + VALUE_DIM) * 8
        for part in layer.packed:  # what is never read may hold anything
            for room in part.split(rooms, 2):
                room[:, :, room.shape[2] - layer.spare :] = float("nan")


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    first=turns,
    acts=st.lists(st.one_of(turns, steps), max_size=8),
)
def test_it_holds_and_reads_what_lists_of_tokens_hold(shape, first, acts):
    pair = Pair(*shape)
    for act, lengths, growth in [first, *acts]:
        if act == "turn":
            pair.read(lengths[: shape[0]], growth)
        elif act == "fork":
            left, pair.layer = pair.layer, pair.layer.fork()
            new = [torch.ones(*shape[:2], 1, size, dtype=torch.float64) for size in (KEY_DIM, VALUE_DIM)]
            left.append(*new, torch.zeros(shape[0], 1), [1] * shape[0])
            left.drop(torch.zeros(shape[:2], dtype=torch.long))
        else:
            pair.step(drop=act == "drop")
        pair.check()


def test_sinks_take_weight_in_every_head():
    pair = Pair(batch=2, kv_heads=2, group=2)
    pair.read([9, 6], growth=3)
    for _ in range(2):
        pair.step(drop=False, sinks=torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64))
        pair.check()


def test_reserved_steps_move_nothing_and_others_not_each_time():
    pair = Pair(batch=1, kv_heads=2, group=1)
    pair.read([40], growth=5)
    addresses = []
    for _ in range(30):
        pair.step(drop=False)
        pair.check()
        addresses.append(pair.layer.packed[0].data_ptr())
    assert len(set(addresses[:5])) == 1 and len(set(addresses)) <= 8


def test_what_follows_slots_follows_them_through_packing():
    pair = Pair(batch=2, kv_heads=2, group=1)
    pair.read([9, 6], growth=2)
    layer = pair.layer
    layer.auxiliary("age")[:] = layer.positions.float()
    pair.step(drop=False)
    assert (layer.aux["age"][layer.positions == torch.tensor([9, 6])[:, None, None]] == 0).all()
    layer.auxiliary("age")[:] = layer.positions.float()
    for _ in range(4):
        pair.step(drop=True)
    old = layer.positions >= 0
    old &= layer.positions < torch.tensor([10, 7])[:, None, None]
    assert old.any() and torch.equal(layer.aux["age"][old], layer.positions[old].float())
    assert layer.aux_bytes() == 2 * layer.positions.nbytes
