"""Every strategy over models of other kinds: windows, attention sinks, latent attention, odd head dimensions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest
import torch
from kinds import KINDS, WINDOW, tiny_kind
from kvfrontier.cache.notes import OF_ENGINE
from kvfrontier.engines import ENGINES
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES, WORKLOADS
from test_every_strategy import NAMES, has_budget, make
from tiny import random_prompts
from toy_tokenizer import VOCAB, toy_tokenizer

LENGTHS, STEPS = [42, 25, 9], 3  # two are longer than the window, and one passes it while later turns come
CHUNK = 15  # of strategies that define their own
ALL_WINDOWS = {"mistral"}
NO_ROLLED = {"gemma3", "deepseek_v2", "deepseek_v3"}
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


@cache
def model(kind):
    return tiny_kind(kind)


def session(kind, **options):
    return TorchSession(model(kind), toy_tokenizer(), **options)


def run(sequences, prompts):
    """Logits after the prefill, each step and a further turn `[STEPS + 2, batch, vocab]`; what is kept before that."""
    logits = [sequences.prefill(prompts, reserve_tokens=STEPS)]
    logits += [sequences.decode([token] * len(prompts)) for token in random_prompts([STEPS], seed=11)[0]]
    kept, sizes = sequences.kept_positions(), sequences.bytes_by_metric()
    logits.append(sequences.extend([row[:10] for row in prompts]))
    held = sizes["kv_device_bytes"] + sizes["kv_host_bytes"] + sizes.get("kv_disk_bytes", 0)
    return torch.stack(logits), kept, held


@cache
def run_full(kind):
    return run(session(kind).open(make("full")), random_prompts(LENGTHS))


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"prefill": "eager"}, {"prefill": "chunked", "chunk_tokens": 7}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_full_cache_gives_the_models_own_logits(kind, options):
    prompt, turn = random_prompts([3 * WINDOW + 5, 2 * WINDOW])
    own = tiny_kind(kind)  # with its own attention and masks
    expected = own(torch.tensor([prompt + turn]), use_cache=False).logits[0]
    sequences = session(kind, **options).open(make("full"))
    logits = [sequences.prefill([prompt])]
    logits += [sequences.decode([token]) for token in turn[: WINDOW + 2]]
    logits += sequences.extend([turn[WINDOW + 2 :]], all_logits=True)
    torch.testing.assert_close(torch.cat(logits), expected[len(prompt) - 1 :], **TOLERANCE)


EVERY_KIND_GIVES = frozenset({"attention_mass", "decode_mass", "chunks"}) | OF_ENGINE


def supported(kind, strategy, spec):
    """Whether the pair can run. If not there is a reason, and where windows leave nothing to do the plan knows it."""
    try:
        strategy.check(spec)
        ENGINES.get("torch")().check(strategy, spec)
        session(kind).open(strategy)
    except Unsupported as reason:
        if kind in ALL_WINDOWS and strategy.acts:
            assert f"window of {WINDOW} tokens" in str(reason)
            with pytest.raises(Unsupported):
                ENGINES.get("torch")().check(strategy, spec)
        else:
            assert str(reason) and strategy.requires() - EVERY_KIND_GIVES, "who asks for no more runs on every kind"
        return False
    assert kind not in ALL_WINDOWS or not strategy.acts
    return True


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_acts_on_open_layers_within_its_formula_and_row_by_row(name, kind):
    strategy, spec = make(name, 0.3, CHUNK), session(kind).spec
    if hasattr(strategy, "start_depth"):  # some kinds have two open layers: a pair only from the first on
        strategy = replace(strategy, start_depth=0.0)
    if not supported(kind, strategy, spec):
        return
    prompts = random_prompts(LENGTHS)
    logits, kept, held = run(session(kind).open(strategy), prompts)
    expected = iter(strategy.kept_by_layer(spec.open_part().layers, LENGTHS[0], STEPS))
    for layer, window in zip(kept, spec.windows or [None] * spec.layers, strict=True):
        for row, length in enumerate(LENGTHS):
            heads = [[position for position in head if position >= 0] for head in layer[row].tolist()]
            if window is not None:
                last = list(range(max(0, length + STEPS - window + 1), length + STEPS))
                assert heads == [last] * spec.kv_heads
                continue
            assert all(head == sorted(set(head)) and head[-1] == length + STEPS - 1 for head in heads)
            if row == 0:
                assert sum(map(len, heads)) == spec.kv_heads * next(expected)
    assert held == sum(
        strategy.kv_bytes(spec.open_part(), 8, length, STEPS) + spec.window_bytes(length + STEPS, 8)
        for length in LENGTHS
    )
    alone, kept_alone, _ = run(session(kind).open(strategy), prompts[1:2])
    torch.testing.assert_close(logits[:, 1], alone[:, 0], **TOLERANCE)
    for together, single in zip(kept, kept_alone, strict=True):
        assert torch.equal(together[1, :, : single.shape[2]], single[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in NAMES if has_budget(name)])
def test_budget_one_is_the_full_cache(name, kind):
    strategy = make(name, 1.0, 100)
    if not supported(kind, strategy, session(kind).spec):
        return
    (logits, kept, held), (expected, everything, all_bytes) = (
        run(session(kind).open(strategy), random_prompts(LENGTHS)),
        run_full(kind),
    )
    assert all(map(torch.equal, kept, everything))
    if held == all_bytes:
        torch.testing.assert_close(logits, expected, **TOLERANCE)


@pytest.mark.parametrize("kind", sorted(NO_ROLLED))
def test_rolled_positions_need_one_plain_rotation(kind):
    with pytest.raises(Unsupported, match="rolled positions need"):
        session(kind).open(STRATEGIES.get("streaming_llm")(positions="rolled"))


@pytest.mark.parametrize("workload", ["speed", "fidelity"])
def test_requested_and_achieved_shares_of_a_model_with_windows_are_both_told(workload):
    settings = {
        "speed": {"context_tokens": 90, "output_tokens": 6, "repeats": 1, "text": "generated"},
        "fidelity": {"context_tokens": 90, "continuation_tokens": 5, "documents": 2, "text": "generated"},
    }[workload]
    tested = TorchSession(tiny_kind("gemma3", vocab_size=VOCAB), toy_tokenizer())
    found = defaultdict(list)
    for value in WORKLOADS.get(workload)(**settings).run(tested, STRATEGIES.get("h2o")(budget=0.3), seed=0):
        found[value.metric].append(value)
    kept = {value.layer: value.value for value in found["kept_tokens"]}
    assert kept == {0: WINDOW - 1, 1: 27, 2: WINDOW - 1, 3: 27}
    assert found["achieved_budget"][0].value == pytest.approx((WINDOW - 1 + 27) / 2 / 95)
    full = [value.value for value in found["kv_full_bytes"] if value.phase == "decode"]
    spec = tested.spec
    assert full[0] == 8 * 2 * 16 * spec.kv_heads * (2 * 95 + 2 * (WINDOW - 1))


def test_windowed_layers_hold_no_more_than_window_and_chunk_while_a_long_prompt_is_read():
    sequences = session("gemma3", prefill="chunked", chunk_tokens=32).open(make("full"))
    sequences.prefill(random_prompts([400]), reserve_tokens=3)
    held = [layer.capacity for layer in sequences.cache.layers]
    assert held == [WINDOW, 403, WINDOW, 403]
