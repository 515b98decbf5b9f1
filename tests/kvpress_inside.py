"""Runs in the environment `kvpress`, where there is no pytest: its engine on a tiny model; prints JSON for a test."""

from __future__ import annotations

import json
import sys

import torch
from kvfrontier.engines._kvpress_session import KVPressSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES
from kvpress_model import LAYERS, TOKENS, same_llama, same_prompt

HEADS, TOKEN_BYTES = 2, 2 * 16 * 4  # KV heads of a layer; a head's key and value of 16 floats
NEXT = [5, 9, 12]
SHORTER = same_prompt()[:50]
KEEPS = {  # press -> budget
    "SnapKVPress(window_size=8)": 0.3,
    "PyramidKVPress(window_size=4, beta=4)": 0.5,
    "AdaKVPress(press=KnormPress)": 0.25,
    "MergingPress(press=KnormPress)": 20,
    "SimLayerKVPress(lazy_threshold=0.1, n_recent=8)": None,
    "DecodingPress(base_press=KnormPress, compression_interval=3, target_size=30)": None,
}


def press(name, budget=0.25):
    return STRATEGIES.get("kvpress")(press=name, budget=budget)


def opened(session, strategy, prompts=None):
    sequences = session.open(strategy)
    return sequences, sequences.prefill(prompts or [same_prompt()])


def check_what_is_kept(session, name, budget):
    """Positions, counts and bytes say the same; rows, copies and ways to read on are independent."""
    strategy = press(name, budget)
    sequences, first = opened(session, strategy, [same_prompt(), SHORTER])
    other, one = sequences.fork(), sequences.fork()
    read_on = other.extend([NEXT, NEXT[:2]])
    steps = [one.decode([token, token]) for token in NEXT]
    if not name.startswith("DecodingPress"):  # its steps are calls, whatever they read
        torch.testing.assert_close(read_on[0], steps[2][0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(read_on[1], steps[1][1], atol=1e-4, rtol=1e-4)
    _, logits = opened(session, strategy, [SHORTER])
    torch.testing.assert_close(logits[0], first[1], atol=1e-5, rtol=1e-5)
    for batch, seen in ((sequences, [TOKENS, 50]), (one, [TOKENS + 3, 53])):
        assert batch.seen_tokens == seen
        counts, held = batch.kept_counts(), batch.bytes_by_metric()
        for layer, positions in enumerate(batch.kept_positions()):
            assert torch.equal((positions >= 0).sum(-1), counts[layer])
            for row, most in zip(positions.tolist(), seen, strict=True):
                for head in row:
                    kept = [place for place in head if place >= 0]
                    assert kept == sorted(set(kept)) and kept[-1] < most
        kept = sum(int(layer.sum()) for layer in counts)
        assert held["kv_device_bytes"] - held["kv_masked_bytes"] == kept * TOKEN_BYTES
        assert ("AdaKV" in name) == bool(held["kv_masked_bytes"])
    if budget:
        mean = sum(float(counts[0].float().mean()) for counts in sequences.kept_counts()) / LAYERS
        assert 0 < mean <= strategy.kept_tokens(TOKENS) and strategy.kept_tokens(TOKENS) < TOKENS


def check_that_rows_together_are_rows_alone(session):
    prompts = [same_prompt(), same_prompt()[::-1]]
    strategy = press("SnapKVPress(window_size=8)")
    together = session.generate(strategy, prompts, 4).tokens
    assert together == [session.generate(strategy, [prompt], 4).tokens[0] for prompt in prompts]


def check_that_changed_keys_are_not_told(session):
    sequences, _ = opened(session, press("KeyRerotationPress(press=KnormPress)"))
    assert sequences.kept_counts()[0].tolist() == [[16, 16]]
    try:
        sequences.kept_positions()
    except Unsupported as told:
        assert "nobody can tell" in str(told)
    else:
        raise AssertionError("positions of keys that were turned")


def main() -> None:
    session = KVPressSession(same_llama())
    for name, budget in KEEPS.items():
        check_what_is_kept(session, name, budget)
    check_that_rows_together_are_rows_alone(session)
    check_that_changed_keys_are_not_told(session)
    found = {}
    for name, strategy in (
        ("full", STRATEGIES.get("full")()),
        ("snapkv", press("SnapKVPress(window_size=6, kernel_size=5)")),
    ):
        sequences, logits = opened(session, strategy)
        steps = [logits, *(sequences.decode([token]) for token in NEXT)]
        kept = [[[place for place in head if place >= 0] for head in layer[0].tolist()]
                for layer in sequences.kept_positions()]  # fmt: skip
        found[name] = {"kept": kept, "logits": torch.cat(steps).tolist()}
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
