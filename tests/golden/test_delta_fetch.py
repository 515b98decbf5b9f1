"""Delta fetch: InfiniGen's answers bit for bit, fewer bytes, whatever the lookahead and the pages."""

from __future__ import annotations

import pytest
import torch
from kvfrontier.cache.fetching import FetchingPool
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.strategies.delta_fetch import DeltaFetch
from kvfrontier.strategies.infinigen import Infinigen
from tiny import exact_llama, random_prompts

LAYERS, DIM, STEPS = 5, 16, 8
TOKEN_BYTES = 2 * DIM * 8
CASES = {
    "default": {},
    "own counts": {"alpha": 1.0, "per_head_count": True, "budget": 0.9},
    "as the budget allows": {"alpha": None, "budget": 0.3},
    "a limited pool": {"alpha": None, "budget": 0.3, "pool_limit": 30},
    "everything": {"budget": 1.0},
}


@pytest.fixture(scope="module")
def model():
    return exact_llama(layers=LAYERS, kv_heads=2, q_heads=4)


def feed(model, strategy, lengths=(60, 41)):
    """Logits of a prefill, steps, a turn and more steps; the sequences."""
    sequences = TorchSession(model).open(strategy)
    logits = [sequences.prefill(random_prompts(list(lengths)), reserve_tokens=2 * STEPS)]
    generated = random_prompts([STEPS, STEPS], seed=5)
    logits += [sequences.decode([token, token + 1]) for token in generated[0]]
    logits.append(sequences.extend(random_prompts([9, 4], seed=6)))
    logits += [sequences.decode([token, token + 1]) for token in generated[1]]
    return torch.stack(logits), sequences


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("more", [{}, {"lookahead": 2}, {"lookahead": 2, "overlap": "layer"}], ids=str)
def test_it_answers_as_infinigen_does_bit_for_bit(model, options, more):
    plain, whole = feed(model, Infinigen(**options))
    logits, sequences = feed(model, DeltaFetch(**options, **more))
    assert torch.equal(logits, plain)
    assert all(map(torch.equal, sequences.kept_positions(), whole.kept_positions()))
    for mine, theirs in zip(sequences.fetched(), whole.fetched(), strict=True):
        assert (mine.chosen, mine.most, mine.row_steps) == (theirs.chosen, theirs.most, theirs.row_steps)
        assert sum(theirs.reused) == 0 and sum(mine.reused) > 0
        assert more or mine.copied_bytes < theirs.copied_bytes
    assert sequences.cache.copied_bytes()["fetched_bytes"] >= sum(log.copied_bytes for log in sequences.fetched())


def test_what_crosses_the_link_is_what_the_last_step_did_not_have(model, monkeypatch):
    steps, start = {}, FetchingPool.start

    def note(pool, slots, counts, room, timer):
        chosen = [set(slots[0, head, :n].tolist()) for head, n in enumerate(counts[0].tolist())]
        steps.setdefault(id(pool), []).append((chosen, pool.log.copied_bytes))
        start(pool, slots, counts, room, timer)

    monkeypatch.setattr(FetchingPool, "start", note)
    sequences = TorchSession(model).open(DeltaFetch(budget=0.4, alpha=1.5))
    sequences.prefill(random_prompts([60]), reserve_tokens=STEPS)
    for token in random_prompts([STEPS], seed=5)[0]:
        sequences.decode([token])
    moved = []
    for layer in sequences.cache.layers:
        there, reused, bytes_before = [set(), set()], 0, 0
        for step, (chosen, copied) in enumerate(steps[id(layer)]):
            assert copied == bytes_before
            bytes_before += sum(len(of - have) for of, have in zip(chosen, there, strict=True)) * TOKEN_BYTES
            reused += sum(len(of & have) for of, have in zip(chosen, there, strict=True))
            there = [of | {60 + step} for of in chosen]  # the step's own token stays, too
        assert layer.log.copied_bytes == bytes_before and sum(layer.log.reused) == reused
        moved.append(bytes_before)
    assert moved[0] == 60 * 2 * TOKEN_BYTES, "a full layer is fetched once"
    assert moved[3] > 0


@pytest.mark.parametrize("page", [4, 7])
@pytest.mark.parametrize("lookahead", [1, 2])
def test_pages_move_whole_and_change_no_answer(model, page, lookahead):
    plain, whole = feed(model, DeltaFetch(budget=0.3))
    logits, sequences = feed(model, DeltaFetch(budget=0.3, page_tokens=page, lookahead=lookahead))
    assert torch.equal(logits, plain)
    copied = [log.copied_bytes for log in sequences.fetched()]
    assert all(size % (page * TOKEN_BYTES) == 0 for size in copied)
    assert all(more > less for more, less in zip(copied, (log.copied_bytes for log in whole.fetched()), strict=True))
    assert sequences.cache.layers[3].pool.shape[2] % page == 0


def test_looking_further_ahead_copies_more_but_less_at_the_last_moment(model):
    """The early part is fetched before `start` tells what is chosen; only the rest is fetched then."""
    _, one = feed(model, DeltaFetch(budget=0.4, alpha=None))
    _, two = feed(model, DeltaFetch(budget=0.4, alpha=None, lookahead=2))
    for layer, (near, far) in enumerate(zip(one.fetched(), two.fetched(), strict=True)):
        assert far.copied_bytes > near.copied_bytes if layer >= 2 else far.copied_bytes == near.copied_bytes


def test_device_bytes_are_places_for_the_budget_and_go_with_the_next_turn(model):
    strategy = DeltaFetch(budget=0.4, alpha=0.5)
    sequences = TorchSession(model).open(strategy)
    sequences.prefill(random_prompts([60, 41]), reserve_tokens=2)
    spec = sequences.session.spec
    assert sequences.bytes_by_metric()["kv_device_bytes"] == 0
    sequences.decode([5, 6])
    sequences.decode([5, 6])
    sizes = sequences.bytes_by_metric()
    places = sum(2 * (n + 1) + 3 * (-(-4 * n // 10) + 1) for n in (61, 42))
    assert sizes["kv_device_bytes"] == places * 2 * TOKEN_BYTES
    held = sizes["kv_device_bytes"] + sizes["kv_host_bytes"]
    assert held == strategy.kv_bytes(spec, 8, 60, 2) + strategy.kv_bytes(spec, 8, 41, 2)
    sequences.extend(random_prompts([3, 3]))
    assert sequences.bytes_by_metric()["kv_device_bytes"] == 0


@pytest.mark.parametrize("lengths", [(60, 60), (60, 41)])
def test_an_adaptive_fetch_takes_the_best_that_come_in_time_and_fills_up_with_what_is_there(
    model, monkeypatch, lengths
):
    """Five tokens of both heads come in time: 5 * 2 * TOKEN_BYTES at 10^-3 GB/s."""
    noted, limited = [], DeltaFetch.limited

    def note(strategy, cache, scores, counts):
        held = cache.aux["held"][:, :, : cache.slots] > 0 if cache.buffer is not None else scores.isnan()
        noted.append((scores, held, limited(strategy, cache, scores, counts), counts, cache.log.copied_bytes))
        return noted[-1][2]

    monkeypatch.setattr(DeltaFetch, "limited", note)
    strategy = DeltaFetch(budget=0.4, alpha=None, link_gigabytes_per_s=1e-3, layer_compute_s=10 * TOKEN_BYTES / 1e6)
    _, sequences = feed(model, strategy, lengths)
    for scores, held, (left, count), counts, _ in noted:
        for row in range(2):
            for head in range(2):
                of, there = scores[row, head].tolist(), held[row, head].tolist()
                rest = sorted((i for i, s in enumerate(of) if not there[i] and s > -float("inf")), key=lambda i: -of[i])
                free = [i for i, is_there in enumerate(there) if is_there]
                assert sorted((left[row, head] > -float("inf")).nonzero().flatten().tolist()) == sorted(rest[:5] + free)
                assert count[row, head] == min(counts[row, head], len(rest[:5] + free))
    per_step = 2 * 5 * 2 * TOKEN_BYTES
    for layer in sequences.cache.layers[2:]:
        assert 0 < layer.log.copied_bytes <= 2 * STEPS * per_step
    assert any(int(count.max()) > 5 for _, _, (_, count), _, _ in noted), "what is there fills the choice"
    assert torch.equal(
        feed(model, DeltaFetch(budget=0.4, link_gigabytes_per_s=100.0, layer_compute_s=1.0))[0],
        feed(model, DeltaFetch(budget=0.4))[0],
    )


def test_settings_that_do_not_go_together():
    with pytest.raises(ValueError, match="needs link_gigabytes_per_s"):
        DeltaFetch(layer_compute_s=0.1)
    with pytest.raises(ValueError, match="lookahead 2 and pages bring other tokens"):
        DeltaFetch(layer_compute_s=0.1, link_gigabytes_per_s=1.0, lookahead=2)
