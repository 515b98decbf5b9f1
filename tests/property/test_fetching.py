"""Whatever is fetched, from whatever rows, over whatever turns: chunks, batches and forks change nothing."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.strategies.delta_fetch import DeltaFetch
from kvfrontier.strategies.infinigen import Infinigen
from tiny import exact_llama, random_prompts

MODEL = exact_llama(layers=3, head_dim=8, hidden=16)
budgets = st.one_of(st.floats(0.1, 1.0), st.integers(2, 12))
options = st.fixed_dictionaries(
    {
        "budget": budgets,
        "alpha": st.one_of(st.none(), st.floats(0.0, 4.0)),
        "partial_ratio": st.sampled_from([0.2, 0.5, 1.0]),
        "per_head_count": st.booleans(),
        "group_reduce": st.sampled_from(["max", "mean"]),
        "k_min": st.integers(1, 4),
        "sinks": st.integers(0, 3),
        "full_layers": st.integers(1, 2),
        "skew_rows": st.sampled_from([2, 2048]),
        "pool_limit": st.one_of(st.just(1.0), budgets),
        "pool_policy": st.sampled_from(["counter", "lru", "fifo"]),
        "overlap": st.sampled_from(["none", "copy", "layer"]),
    }
)
pages = st.sampled_from([{}, {"page_tokens": 3}, {"lookahead": 2}, {"lookahead": 2, "page_tokens": 2}])
turns = st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=4)


def act(sequences, tokens):
    if len(tokens[0]) > 1:
        return sequences.extend(tokens)
    return sequences.decode([row[0] for row in tokens])


@settings(max_examples=20, deadline=None)
@given(options=options, more=pages, rows=st.lists(st.integers(1, 24), min_size=1, max_size=3), turns=turns)
def test_chunks_rows_forks_and_what_stays_on_the_device_change_nothing(options, more, rows, turns):
    strategy, delta = Infinigen(**options), DeltaFetch(**options, **more)
    prompts = random_prompts(rows, seed=1)
    batches = [
        TorchSession(MODEL).open(strategy),
        TorchSession(MODEL).open(delta),
        TorchSession(MODEL, prefill="chunked", chunk_tokens=5).open(strategy),
    ]
    singles = [TorchSession(MODEL).open(strategy) for _ in rows]
    for sequences in batches:
        sequences.prefill(prompts)
    for single, row in zip(singles, prompts, strict=True):
        single.prefill([row])
    spec, read, steps = batches[0].session.spec, list(rows), 0
    for is_extension, tokens in turns:
        for step in range(1 if is_extension else tokens):
            lengths = [2 + (tokens + row) % 7 for row in range(len(rows))] if is_extension else [1] * len(rows)
            new = random_prompts(lengths, seed=step + tokens)
            logits, *others = (act(sequences, new) for sequences in batches)
            assert torch.equal(others[0], logits)
            alone = torch.cat([act(single, [row]) for single, row in zip(singles, new, strict=True)])
            for other in (others[1], alone):
                torch.testing.assert_close(other, logits, atol=1e-5, rtol=1e-5)
            batches = [sequences.fork() for sequences in batches]
            if is_extension:
                read, steps = [a + steps + b for a, b in zip(read, lengths, strict=True)], 0
            else:
                steps += 1
    kept = batches[0].kept_positions()
    for sequences in batches[1:]:
        assert all(map(torch.equal, sequences.kept_positions(), kept))
    for sequences, made in zip(batches, (strategy, delta, strategy), strict=True):
        sizes = sequences.bytes_by_metric()
        held = sizes["kv_device_bytes"] + sizes["kv_host_bytes"]
        assert held <= sum(made.kv_bytes(spec, 8, tokens, steps) for tokens in read)
        for index, log in enumerate(sequences.fetched()):
            assert max(log.most, default=0) <= made.most_attended(max(read) + steps, index)
