"""A session that recomputes everything at each step: slow, obviously right, for tests of workloads only.

It can act out an eviction: `keeps` tells which of a row's tokens stay after reading; later tokens then attend to those
alone (at their original positions), as a cache without the others would make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from kvfrontier.engines.base import Generation, Sequences, Session
from kvfrontier.plan.model import ModelSpec
from kvfrontier.strategies.base import Strategy

BYTES_PER_TOKEN = 1000


class FakeSession(Session):
    """`model`: a transformers model; keeps(strategy, tokens) -> sorted positions that stay after reading."""

    def __init__(self, model, tokenizer=None, keeps: Callable[[Strategy, int], list[int]] | None = None):
        config = model.config
        heads, width = config.num_attention_heads, config.head_dim
        self.spec = ModelSpec(
            "fake", config.num_hidden_layers, heads, config.num_key_value_heads, width, config.hidden_size,
            config.vocab_size, config.max_position_embeddings,
        )  # fmt: skip
        self.model, self.tokenizer, self.memo = model, tokenizer, {}
        self.keeps = keeps or (lambda strategy, tokens: list(range(tokens)))
        self.opened: list[Strategy] = []

    def open(self, strategy: Strategy) -> FakeSequences:
        self.opened.append(strategy)
        return FakeSequences(self, strategy)

    def generate(self, strategy: Strategy, prompts: Sequence[Sequence[int]], output_tokens: int) -> Generation:
        raise AssertionError("speed is tested with a scripted session")

    def close(self) -> None:
        self.model = None


@dataclass
class _Row:
    tokens: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)


class FakeSequences(Sequences):
    def __init__(self, session: FakeSession, strategy: Strategy):
        self.session, self.strategy, self.rows = session, strategy, []

    def prefill(self, prompts, reserve_tokens=0, notes=()):
        self.rows = [_Row() for _ in prompts]
        return self.extend(prompts)

    def extend(self, tokens, all_logits=False, notes=()):
        logits = [self._read(row, list(new)) for row, new in zip(self.rows, tokens, strict=True)]
        for row in self.rows:
            stay = set(self.session.keeps(self.strategy, len(row.tokens)))
            row.kept = [place for place in row.kept if place in stay]
        return logits if all_logits else torch.stack([row[-1] for row in logits])

    def decode(self, tokens):
        return self.extend([[int(token)] for token in tokens])

    @torch.no_grad()
    def _read(self, row: _Row, new: list[int]):
        start = len(row.tokens)
        row.tokens += new
        row.kept += range(start, len(row.tokens))
        size = len(row.tokens)
        # A new token sees the kept old ones and the new ones before it; evicted tokens stay in the input, unseen.
        mask = torch.ones(size, size).tril().bool()
        gone = [place for place in range(start) if place not in row.kept]
        mask[start:, gone] = False
        bias = torch.zeros(size, size).masked_fill(~mask, torch.finfo(torch.float32).min)
        output = self.session.model(torch.tensor([row.tokens]), attention_mask=bias[None, None], use_cache=False)
        return output.logits[0, start:]

    def fork(self):
        copy = FakeSequences(self.session, self.strategy)
        copy.rows = [_Row(list(row.tokens), list(row.kept)) for row in self.rows]
        return copy

    def kept_positions(self):
        spec, width = self.session.spec, max(len(row.kept) for row in self.rows)
        padded = torch.tensor([row.kept + [-1] * (width - len(row.kept)) for row in self.rows])
        layer = padded[:, None].expand(-1, spec.kv_heads, -1)
        return [layer for _ in range(spec.layers)]

    def bytes_by_metric(self):
        held = BYTES_PER_TOKEN * sum(len(row.kept) for row in self.rows)
        return {"kv_device_bytes": held, "kv_host_bytes": 0, "kv_aux_bytes": 0, "kv_reserved_bytes": held}

    @property
    def seen_tokens(self):
        return [len(row.tokens) for row in self.rows]
