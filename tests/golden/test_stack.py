"""An eviction over a storage against loops that evict, then round what is left."""

from __future__ import annotations

import pytest
import torch
from coded_llama import CodedLlama
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES
from test_int8 import naive_round as round_int8
from test_kivi import settle as settle_kivi
from tiny import exact_llama, random_prompts

STACK = STRATEGIES.get("stack")
PROMPT, STEPS, KEPT = 41, 14, 12


def evict(entries, seen, recent):
    """Down to KEPT: the least score of those that are not recent."""
    while len(entries) > KEPT:
        old = [entry for entry in entries if entry.position < seen - recent]
        entries.remove(min(old, key=lambda entry: entry.score))


def settle_int8(llama, entries, before):
    """The new tokens that survived."""
    new = [entry for entry in entries if entry.position >= before]
    if new:
        values = [round_int8(entry.value.tolist()) for entry in new]
        llama.put_back(new, [round_int8(key) for key in llama.rotated_keys(new)], values)


def settle_groups(llama, entries, before):
    """After the prefill all are new; each decode step adds one."""
    settle_kivi(2, 4, 4)(llama, entries, len(entries) - 1 if before else 0)


CASES = {
    "h2o over int8": ({"evict": "h2o", "store": "int8"}, settle_int8, True),
    "h2o over int8 in host memory": ({"evict": "h2o", "store": "int8", "tier": "offload"}, settle_int8, True),
    "h2o at the prefill over kivi": (
        {
            "evict": {"name": "h2o", "decode_evict": "off"},
            "store": {"name": "kivi", "group_size": 4, "residual_tokens": 4},
        },
        settle_groups,
        False,
    ),
}


@pytest.mark.parametrize("session", [{}, {"prefill": "chunked", "chunk_tokens": 9}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_kept_sets_and_logits_are_those_of_the_loop(case, session):
    params, settle, decode_evicts = CASES[case]
    model, strategy = exact_llama(), STACK(budget=KEPT, **params)
    prompt, generated = random_prompts([PROMPT, STEPS], seed=5)
    sequences, llama = TorchSession(model, **session).open(strategy), CodedLlama(model)
    for step, tokens in enumerate([prompt, *([token] for token in generated)]):
        before = llama.position
        found = sequences.decode(tokens) if step else sequences.prefill([tokens], reserve_tokens=STEPS)
        for token in tokens:
            expected = llama.step(token)
        torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-5)
        for heads in llama.cache:
            for entries in heads:
                if decode_evicts or not step:
                    evict(entries, llama.position, KEPT // 2)
                settle(llama, entries, before)
        assert [layer[0].tolist() for layer in sequences.kept_positions()] == llama.positions()
        sizes = sequences.bytes_by_metric()
        held = sizes["kv_host_bytes" if "tier" in params else "kv_device_bytes"]
        assert held == strategy.kv_bytes(sequences.session.spec, 8, PROMPT, step)


@pytest.mark.parametrize("store", ["int8", "int4_group", "fp8(scale=token_head)"])
def test_codes_of_survivors_never_change(store):
    sequences = TorchSession(exact_llama(layers=1)).open(STACK(store=store, budget=KEPT))
    sequences.prefill(random_prompts([PROMPT]), reserve_tokens=STEPS)
    layer = sequences.cache.layers[0]
    seen = {}
    for token in random_prompts([STEPS], seed=9)[0]:
        for head in range(2):
            for slot, position in enumerate(layer.used_positions()[0, head].tolist()):
                codes = [part[0, head, slot].tolist() for part in layer.held()]
                assert seen.setdefault((head, position), codes) == codes
        sequences.decode([token])
    assert len(seen) > 2 * KEPT + STEPS // 2, "tokens came and went"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"evict": "full"}, "'full' is none"),
        ({"store": "h2o"}, "'h2o' has none"),
        ({"store": "full"}, "'full' has none"),
        ({"store": "offload"}, "'offload' has none"),
        ({"tier": "int8"}, "'int8' does not"),
        ({"store": None}, "that is 'h2o' alone"),
        ({"tier": {"name": "disk", "io": "raw"}}, "disk.io"),
        ({"evict": "h2p"}, "no strategy is called 'h2p'"),
        ({"evict": {"name": "h2o", "sinks": -1}}, "h2o.sinks"),
        ({"evict": {"name": "h2o", "budget": 0.2}}, "stands beside it"),
        ({"evict": "h2o(heavy_ratio=0.1)"}, "exactly one of budget"),
        ({"evict": {"sinks": 1}}, "the name of a strategy"),
        ({"evict": "h2o(sinks=1"}, "not the name of a strategy"),
    ],
)
def test_what_is_no_stack_is_refused(params, message):
    with pytest.raises(ValueError, match=message):
        STACK(**params)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("h2o", "h2o"),
        ({"name": "h2o"}, "h2o"),
        ({"name": "h2o", "recent_share": 0.5, "sinks": 4}, "h2o(sinks=4)"),
        ("h2o( decode_evict = off, sinks=4 )", "h2o(decode_evict=off, sinks=4)"),
        ("h2o(scoring=two_pass)", "h2o(scoring=two_pass)"),
    ],
)
def test_a_part_is_held_as_its_shortest_text_and_read_again(given, text):
    stack = STACK(evict=given)
    assert stack.evict == text
    assert STACK(evict=text) == stack


@pytest.mark.parametrize("evict", ["h2o", "streaming_llm", "h2o(decode_evict=interval)"])
def test_an_eviction_of_single_tokens_out_of_groups_is_unsupported(evict):
    with pytest.raises(Unsupported, match="evicts while decoding"):
        STACK(evict=evict, store="kivi").check(None)
    STACK(evict=evict, store="int4_group").check(None)
    STACK(evict="h2o(decode_evict=off)", store="kivi").check(None)


def test_a_budget_of_its_own_counts_where_the_stack_gives_none():
    stack = STACK(evict="h2o(heavy_ratio=0.1)", budget=None)
    assert stack.kept_tokens(100) == 20
    assert stack.requires() == {"attention_mass"} and stack.made_of() == ("h2o", "int8")
    stack = STACK(store=None, tier={"name": "disk", "io": "direct"})
    assert stack.requires() == {"attention_mass", "transfers"} and stack.made_of() == ("h2o", "full", "disk")
