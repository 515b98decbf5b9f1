"""InfiniGen: what it fetches and answers against a naive float64 model; its bytes; its pool; what changes nothing."""

from __future__ import annotations

import math
from time import monotonic

import pytest
import torch
from kvfrontier.cache.fetching import FetchingPool
from kvfrontier.cache.link import Link
from kvfrontier.cache.skew import COLUMNS, PARTIAL, partial_scores, skew
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.engines.simulator import Simulator
from kvfrontier.errors import Unsupported
from kvfrontier.plan.model import ModelSpec
from kvfrontier.registry import STRATEGIES
from kvfrontier.strategies.infinigen import Infinigen
from naive_infinigen import NaiveInfinigen
from tiny import exact_llama, random_prompts, tiny_llama

LAYERS, DIM, PROMPT, STEPS = 4, 16, 40, 4
SAME = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def model():
    return exact_llama(layers=LAYERS, kv_heads=2, q_heads=6)


@pytest.fixture
def fetches(monkeypatch):
    """Of each step and layer, the positions that are fetched, by head of the first row."""
    noted, start = [], FetchingPool.start

    def note(pool, slots, counts, room, timer):
        assert (counts <= torch.tensor(room)[:, None]).all()
        positions = pool.positions.gather(2, slots)
        noted.append([sorted(positions[0, head, :n].tolist()) for head, n in enumerate(counts[0].tolist())])
        start(pool, slots, counts, room, timer)

    monkeypatch.setattr(FetchingPool, "start", note)
    return noted


def answers(session, strategy, prompts, tokens, reserved=8):
    sequences = session.open(strategy)
    return torch.stack([sequences.prefill(prompts, reserve_tokens=reserved), *map(sequences.decode, tokens)])


CASES = {
    "default": {},
    "threshold": {"alpha": 2.0, "budget": 0.9},
    "own counts": {"alpha": 2.0, "budget": 0.9, "per_head_count": True},
    "mean of the group": {"group_reduce": "mean", "alpha": 1.5, "budget": 0.9},
    "as the budget allows": {"alpha": None, "budget": 0.3, "partial_ratio": 0.5},
    "sinks and a least": {"sinks": 3, "k_min": 7, "alpha": 0.0},
    "one full layer": {"full_layers": 1, "alpha": 3.0, "budget": 0.5},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_it_fetches_and_answers_as_a_naive_model_does(model, fetches, options):
    strategy, naive = Infinigen(**options), NaiveInfinigen(model, Infinigen(**options))
    prompt, generated = random_prompts([PROMPT, STEPS])
    session = TorchSession(model)
    logits = answers(session, strategy, [prompt], [[token] for token in generated])[:, 0]
    for token in prompt:
        expected = naive.step(token)
    torch.testing.assert_close(logits[0], expected, **SAME)
    naive.reading = False
    for step, token in enumerate(generated):
        torch.testing.assert_close(logits[step + 1], naive.step(token), **SAME)
        for layer in range(LAYERS):
            every = list(range(PROMPT + step))
            expected = [naive.chosen.get((layer, head), every) for head in range(2)]
            assert fetches[step * LAYERS + layer] == expected
            assert strategy.full_layers > layer or max(map(len, expected)) < len(every)


def test_skewing_is_the_singular_value_decomposition_and_changes_no_product():
    generator = torch.Generator().manual_seed(1)
    queries, keys = (torch.randn(3, 200, DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    queries *= torch.linspace(1, 3, DIM)
    basis = skew(queries)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(DIM, dtype=torch.float64).expand(3, -1, -1))
    torch.testing.assert_close((queries @ basis) @ (keys @ basis).mT, queries @ keys.mT)
    overlap = (torch.linalg.svd(queries).Vh @ basis).abs()
    torch.testing.assert_close(overlap, torch.eye(DIM, dtype=torch.float64).expand(3, -1, -1), atol=1e-5, rtol=0)


def test_queries_are_taken_evenly_whatever_the_chunks(model):
    prompts = random_prompts([50, 33, 7])
    columns = []
    for chunk in (50, 16, 3):
        session = TorchSession(model, prefill="chunked", chunk_tokens=chunk)
        sequences = session.open(Infinigen(skew_rows=12))
        sequences.prefill(prompts)
        columns.append(sequences.cache.layers[2].extras[COLUMNS])
        assert list(sequences.cache.layers[2].extras) == [COLUMNS], "the queries themselves are forgotten"
    for other in columns[1:]:
        torch.testing.assert_close(other.abs(), columns[0].abs(), **SAME)
    whole = TorchSession(model).open(Infinigen())
    whole.prefill(prompts)
    assert not torch.allclose(whole.cache.layers[2].extras[COLUMNS][0].abs(), columns[0][0].abs(), atol=1e-3)


def test_partial_keys_find_more_of_the_largest_scores_the_more_columns_they_have(model):
    (prompt,) = random_prompts([300], seed=3)
    session, shares = TorchSession(model), []
    for ratio in (0.07, 0.2, 0.5, 1.0):
        sequences = session.open(Infinigen(partial_ratio=ratio))
        sequences.prefill([prompt])
        cache, generator = sequences.cache.layers[3], torch.Generator().manual_seed(0)
        keys = cache.pool[:, :, :300, :DIM]
        queries = torch.randn(1, 6, 50, DIM, generator=generator, dtype=keys.dtype)
        found = 0
        for row in queries.split(1, 2):
            true = (row.reshape(1, 2, 3, DIM) @ keys.mT).topk(20).indices.view(6, 20).tolist()
            guess = partial_scores(cache, row, 1.0).topk(20).indices.view(6, 20).tolist()
            found += sum(len({*a} & {*b}) for a, b in zip(true, guess, strict=True))
        shares.append(found / (queries.shape[2] * 6 * 20))
        assert cache.aux[PARTIAL].shape[-1] == max(1, int(ratio * DIM))
    assert shares == sorted(shares) and shares[-1] == 1.0 and shares[0] < 0.7


def test_bytes_over_the_link_are_those_of_the_formula(model):
    batch, token_bytes = 2, 2 * DIM * 8
    prompts, generated = random_prompts([40, 25]), random_prompts([3])[0]
    strategy = Infinigen(alpha=None, budget=0.25)
    sequences = TorchSession(model).open(strategy)
    sequences.prefill(prompts, reserve_tokens=3)
    link = sequences.cache.layers[0].link
    assert all(layer.link is link for layer in sequences.cache.layers)
    assert (link.fetched_bytes, link.stored_bytes) == (0, LAYERS * 2 * (40 + 25) * token_bytes)
    for step, token in enumerate(generated):
        before = link.fetched_bytes, link.stored_bytes
        sequences.decode([token] * batch)
        held = [40 + step, 25 + step]
        chosen = sum(2 * tokens + 2 * math.ceil(0.25 * tokens) for tokens in held)
        assert link.fetched_bytes - before[0] == chosen * 2 * token_bytes
        assert link.stored_bytes - before[1] == batch * LAYERS * 2 * token_bytes
    logs = sequences.fetched()
    assert sum(log.copied_bytes for log in logs) == link.fetched_bytes
    assert [log.row_steps for log in logs] == [6] * LAYERS
    assert sequences.cache.copied_bytes() == {"fetched_bytes": link.fetched_bytes, "stored_bytes": link.stored_bytes}
    assert logs[0].chosen == logs[0].available and logs[2].most == [math.ceil(0.25 * 42)] * 2
    assert logs[0].device_bytes == pytest.approx((43 + 43) * 2 * token_bytes, abs=0)
    sizes = sequences.bytes_by_metric()
    assert sizes["kv_device_bytes"] == 0 and sizes["kv_host_bytes"] == LAYERS * 2 * (43 + 28) * token_bytes


def test_the_pool_is_the_full_cache_bit_for_bit():
    model, prompts = tiny_llama(layers=3), random_prompts([40, 25])
    session = TorchSession(model)
    full, fetching = session.open(STRATEGIES.get("full")()), session.open(Infinigen(budget=1.0))
    for sequences in (full, fetching):
        sequences.prefill(prompts, reserve_tokens=4)
        for token in (5, 6, 7, 8):
            logits = sequences.decode([token, token])
        sequences.logits = logits
    assert torch.equal(full.logits, fetching.logits)
    for mine, theirs in zip(fetching.cache.layers, full.cache.layers, strict=True):
        for row, length in enumerate((44, 29)):
            held = torch.cat((theirs.keys, theirs.values), -1)[row, :, :length]
            assert torch.equal(mine.pool[row, :, :length], held)
    assert not fetching.cache.layers[2].aux and not fetching.cache.layers[2].extras


class Late:
    """A transfer that begins when somebody waits for it: as late as a busy link could."""

    def __init__(self, work):
        self.work = work

    def wait(self):
        self.work()
        self.work = None


@pytest.mark.parametrize("name", ["infinigen", "delta_fetch"])
@pytest.mark.parametrize("reserved", [3, 0], ids=["room for the steps", "a pool that moves meanwhile"])
def test_a_late_transfer_brings_what_was_asked_for(model, monkeypatch, name, reserved):
    prompts, tokens = random_prompts([60, 45]), [[7, 8], [9, 10], [11, 12]]
    made, session = STRATEGIES.get(name), TorchSession(model)
    plain = answers(session, made(), prompts, tokens)
    monkeypatch.setattr(Link, "submit", lambda link, work, device: Late(work))
    for overlap in ("copy", "layer"):
        assert torch.equal(answers(session, made(overlap=overlap), prompts, tokens, reserved), plain)


@pytest.mark.parametrize("overlap", ["copy", "layer"])
@pytest.mark.parametrize("name", ["infinigen", "delta_fetch"])
def test_overlap_changes_no_bit(model, name, overlap):
    prompts, tokens = random_prompts([60, 45]), [[7, 8], [9, 10], [11, 12]]
    made, session = STRATEGIES.get(name), TorchSession(model)
    plain = answers(session, made(), prompts, tokens)
    slow = made(overlap=overlap, link_gigabytes_per_s=0.01)  # long enough to be overtaken, were it not waited for
    assert torch.equal(answers(session, slow, prompts, tokens), plain)


def test_an_emulated_link_takes_its_time_and_is_told(model):
    prompts, tokens = random_prompts([60]), [[7]]
    strategy = Infinigen(link_gigabytes_per_s=0.001, overlap="layer")
    sequences = TorchSession(model).open(strategy)
    start = monotonic()
    sequences.prefill(prompts)
    sequences.decode(tokens[0])
    moved = sum(sequences.cache.copied_bytes().values())
    assert monotonic() - start >= moved / 1e6
    assert strategy.memories("cpu") == {
        "kv_tier": "host memory: the same RAM as the device's", "kv_link": "emulated, 0.001 GB/s",
    }  # fmt: skip
    assert Infinigen().memories("cuda") == {"kv_tier": "pinned host memory", "kv_link": "real"}


def test_a_turn_attends_to_everything_and_can_be_fetched_afterwards(model, fetches):
    prompts, turns = random_prompts([60, 45]), random_prompts([9, 14], seed=4)
    for options in ({}, {"prefill": "chunked", "chunk_tokens": 4}):
        session = TorchSession(model, **options)
        full, fetching = session.open(STRATEGIES.get("full")()), session.open(Infinigen(budget=0.3, alpha=None))
        for sequences in (full, fetching):
            sequences.prefill(prompts)
        before = fetching.cache.layers[0].link.fetched_bytes
        torch.testing.assert_close(fetching.extend(turns), full.extend(turns), **SAME)
        copied = fetching.cache.layers[0].link.fetched_bytes - before
        assert copied >= LAYERS * 2 * (60 + 45) * 2 * DIM * 8
        assert torch.equal(fetching.kept_positions()[2], full.kept_positions()[2])
        fetches.clear()
        fetching.decode([5, 6])
        assert max(max(head) for head in fetches[2]) >= 60, "the turn's tokens are fetched like others"
        assert {len(head) for head in fetches[2]} == {math.ceil(0.3 * 69)}


def naive_pool(policy, sinks, limit, steps, heads):
    """Positions that stay after each step, by head; steps: what each fetched, by head."""
    kept = [list(range(PROMPT))[:sinks] + list(range(PROMPT))[PROMPT - (limit - sinks) :] for _ in range(heads)]
    uses, stayed = [{} for _ in range(heads)], []
    for step, fetched in enumerate(steps):
        for head in range(heads):
            for position in fetched[head]:
                uses[head][position] = step + 1 if policy == "lru" else uses[head].get(position, 0) + 1
            kept[head].append(PROMPT + step)
            old = kept[head][sinks:][: (len(kept[head]) - sinks) // 2]
            worth = [0 if policy == "fifo" else uses[head].get(position, 0) for position in old]
            kept[head].remove(old[worth.index(min(worth))])
        stayed.append([list(head) for head in kept])
    return stayed


def assert_the_pool_holds(model, sequences, row, tokens):
    """Each slot of layer 0, whose keys and values do not hang on what was attended to, has its position's."""
    full = TorchSession(model).open(STRATEGIES.get("full")())
    full.prefill([tokens])
    expected = torch.cat((full.cache.layers[0].keys, full.cache.layers[0].values), -1)
    first = sequences.cache.layers[0]
    used = int(first.counts[row, 0])
    at = first.positions[row, :, :used].long()[None, ..., None].expand(-1, -1, -1, 2 * DIM)
    torch.testing.assert_close(first.pool[row : row + 1, :, :used], expected.gather(2, at), **SAME)


@pytest.mark.parametrize("policy", ["counter", "lru", "fifo"])
@pytest.mark.parametrize("sinks", [0, 2])
def test_a_full_pool_loses_what_the_policy_says(model, fetches, policy, sinks):
    strategy = Infinigen(pool_limit=30, pool_policy=policy, sinks=sinks, budget=0.4, alpha=None)
    sequences = TorchSession(model).open(strategy)
    prompt, generated = random_prompts([PROMPT, 12])
    sequences.prefill([prompt], reserve_tokens=12)
    kept = []
    for token in generated:
        sequences.decode([token])
        kept.append([positions[0].tolist() for positions in sequences.kept_positions()])
    for layer in range(LAYERS):
        expected = naive_pool(policy, sinks, 30, fetches[layer::LAYERS], heads=2)
        assert [step[layer] for step in kept] == expected
    assert sequences.cache.layers[0].host_bytes() == 2 * 30 * 2 * DIM * 8
    assert_the_pool_holds(model, sequences, 0, prompt + generated)


def test_the_same_number_of_tokens_whatever_the_limit_of_the_pool(model):
    strategy = Infinigen(pool_limit=0.5)
    sequences = TorchSession(model).open(strategy)
    prompts, turns = random_prompts([40, 21]), random_prompts([8, 3], seed=2)
    sequences.prefill(prompts, reserve_tokens=2)
    sequences.decode([5, 6])
    sequences.extend(turns)
    counts = sequences.cache.layers[3].counts.tolist()
    assert counts == [[strategy.kept_tokens(48)] * 2, [strategy.kept_tokens(24)] * 2] == [[24, 24], [12, 12]]
    for row, decoded in enumerate((5, 6)):
        assert_the_pool_holds(model, sequences, row, [*prompts[row], decoded, *turns[row]])


def test_what_cannot_run_is_told_when_the_plan_is_made():
    small = ModelSpec("small", layers=2)
    with pytest.raises(Unsupported, match="full_layers 2: small has 2 layers, none would choose"):
        Infinigen().check(small)
    Infinigen(full_layers=1).check(small)
    Infinigen(budget=1.0).check(small)
    with pytest.raises(Unsupported, match="the simulator has no formula"):
        Simulator().check(Infinigen(), small)
    with pytest.raises(ValueError, match="store takes a strategy with a storage of its own; 'infinigen' has none"):
        STRATEGIES.get("stack")(store="infinigen")
