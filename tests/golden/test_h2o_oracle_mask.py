"""The mask that knows the future against loops over layers, heads and rows."""

from __future__ import annotations

import math

import pytest
import torch
from kvfrontier.engines._torch_session import TorchSession
from kvfrontier.errors import Unsupported
from kvfrontier.registry import STRATEGIES, WORKLOADS
from reference import NaiveLlama, rotate
from tiny import exact_llama, random_prompts
from toy_tokenizer import VOCAB, toy_tokenizer

MASK = STRATEGIES.get("h2o_oracle_mask")
TOKENS = 45


def naive_logits(model, tokens, heavy, recent):
    """`[tokens, vocab]`: per layer the sums of all rows first, then every row over what they leave visible."""
    llama, n = NaiveLlama(model), len(tokens)
    w, config = llama.weights, model.config
    hidden = w["model.embed_tokens.weight"][tokens]
    norm = lambda x, name: torch.stack([llama._norm(row, w[name]) for row in x])  # noqa: E731
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}."
        x = norm(hidden, name + "input_layernorm.weight")
        q, k, v = (
            (x @ w[name + f"self_attn.{p}_proj.weight"].T).view(n, -1, config.head_dim).transpose(0, 1) for p in "qkv"
        )
        q, k = ([rotate(head, list(range(n)), llama.theta) for head in heads] for heads in (q, k))
        group, mixed = len(q) // len(k), []
        for head, keys in enumerate(k):
            scores = [q[head * group + g] @ keys.T / math.sqrt(config.head_dim) for g in range(group)]
            sums = [0.0] * n
            for matrix in scores:
                for i in range(n):
                    for j, weight in enumerate(matrix[i, : i + 1].softmax(0).tolist()):
                        sums[j] += weight
            chosen = set(sorted(range(n), key=lambda j: -sums[j])[:heavy])
            for matrix in scores:
                rows = []
                for i in range(n):
                    seen = [j for j in range(i + 1) if j in chosen or j >= i - recent]
                    rows.append(matrix[i, seen].softmax(0) @ v[head][seen])
                mixed.append(torch.stack(rows))
        hidden = hidden + torch.cat(mixed, 1) @ w[name + "self_attn.o_proj.weight"].T
        x = norm(hidden, name + "post_attention_layernorm.weight")
        gate, up = x @ w[name + "mlp.gate_proj.weight"].T, x @ w[name + "mlp.up_proj.weight"].T
        hidden = hidden + (torch.nn.functional.silu(gate) * up) @ w[name + "mlp.down_proj.weight"].T
    return norm(hidden, "model.norm.weight") @ w["lm_head.weight"].T


@pytest.mark.parametrize(("heavy", "recent"), [(0.1, 0.1), (0.2, 0.0), (0.0, 0.3), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("prefill", ["sdpa", "eager"])
def test_logits_are_those_of_the_loop(heavy, recent, prefill):
    model, rows = exact_llama(), random_prompts([TOKENS, TOKENS])
    sequences = TorchSession(model, prefill=prefill).open(MASK(heavy_ratio=heavy, recent_ratio=recent))
    logits = sequences.score(rows, last=30)
    for row, found in zip(rows, logits, strict=True):
        expected = naive_logits(model, row, int(heavy * TOKENS), int(recent * TOKENS))
        torch.testing.assert_close(found, expected[-30:], atol=1e-6, rtol=1e-6)
    full = TorchSession(model).open(STRATEGIES.get("full")()).score(rows, last=30)
    assert torch.allclose(full, logits, atol=1e-6) == (1.0 in (heavy, recent))


def test_later_tokens_change_earlier_rows():
    """What an honest policy never does."""
    strategy, (row, other) = MASK(), random_prompts([TOKENS, TOKENS])
    changed = row[:30] + other[30:]
    a, b = (TorchSession(exact_llama()).open(strategy).score([tokens], last=TOKENS) for tokens in (row, changed))
    assert not torch.allclose(a[0, :30], b[0, :30], atol=1e-3)


def test_fidelity_measures_it_with_the_full_caches_bytes():
    session = TorchSession(exact_llama(vocab=VOCAB), toy_tokenizer())
    workload = WORKLOADS.get("fidelity")(context_tokens=40, continuation_tokens=8, documents=3, text="generated")
    found = {}
    for strategy in (MASK(), MASK(recent_ratio=1.0)):
        rows = list(workload.run(session, strategy, seed=0))
        found[strategy] = [value.value for value in rows if value.metric == "kl_divergence"]
        assert [value.value for value in rows if value.metric == "achieved_budget"] == [1.0]
        sizes = {value.metric: value.value for value in rows if value.phase == "decode"}
        assert sizes["kv_device_bytes"] == sizes["kv_full_bytes"]
    masked, unmasked = found.values()
    assert len(masked) == 24 and min(masked) > 1e-4 and max(unmasked) < 1e-6


@pytest.mark.parametrize("act", [lambda s: s.decode([3]), lambda s: s.extend([[3, 4]])], ids=["decode", "extend"])
def test_there_is_no_step_after_a_whole_sequence(act):
    sequences = TorchSession(exact_llama()).open(MASK())
    sequences.score(random_prompts([20]), last=1)
    with pytest.raises(Unsupported, match="whole sequences"):
        act(sequences)
