"""InfiniGen as a naive float64 model with python lists. It shares no code with the package."""

from __future__ import annotations

import math

import torch
from reference import NaiveLlama, best, rotate


class NaiveInfinigen(NaiveLlama):
    """Speculates with python lists, layer by layer, at the moment a layer's attention input is known.

    reading: attend to everything, as a prompt and a turn do; calibrates: note the queries, as a prompt does.
    """

    def __init__(self, model, strategy):
        super().__init__(model)
        self.set, self.reading, self.calibrates = strategy, True, True
        self.rows = {place: [] for place in self._places()}  # rotated queries of the prompt: (position, query)
        self.chosen = {}

    def _places(self):
        return {id(entries): (i, head) for i, heads in enumerate(self.cache) for head, entries in enumerate(heads)}

    def _norm(self, x, weight):
        x = super()._norm(x, weight)
        for layer in range(self.set.full_layers, len(self.cache)):
            if weight is self.weights[f"model.layers.{layer - 1}.input_layernorm.weight"] and not self.reading:
                weight_q = self.weights[f"model.layers.{layer}.self_attn.q_proj.weight"]
                self._speculate(layer, (weight_q @ x).view(-1, self.config.head_dim))
        return x

    def _speculate(self, layer, queries):
        scores, group, width = [], len(queries) // len(self.cache[layer]), self.config.head_dim
        for head, entries in enumerate(self.cache[layer]):
            rows = torch.stack(self.rows[id(entries)])
            basis = torch.linalg.svd(rows).Vh.T
            basis = basis[:, best((rows @ basis).abs().sum(0).tolist(), max(1, int(self.set.partial_ratio * width)))]
            keys = rotate(torch.stack([e.key for e in entries]), [e.position for e in entries], self.theta) @ basis
            asked = rotate(queries[head * group : (head + 1) * group], [self.position] * group, self.theta) @ basis
            seen = (asked @ keys.T / math.sqrt(width)).tolist()
            scores.append(
                [max(s) if self.set.group_reduce == "max" else sum(s) / group for s in zip(*seen, strict=True)]
            )
        tokens, low = len(scores[0]), max(self.set.k_min, self.set.sinks)
        cap = min(tokens, max(low, math.ceil(self.set.budget * tokens)))
        alpha = math.inf if self.set.alpha is None else self.set.alpha
        near = [sum(s >= max(of) - alpha for s in of) for of in scores]
        if not self.set.per_head_count:
            near = [int(sum(near) / len(near))] * len(near)
        for head, of in enumerate(scores):
            of = [
                math.inf if e.position < self.set.sinks else s for e, s in zip(self.cache[layer][head], of, strict=True)
            ]
            places = best(of, min(cap, max(low, near[head])))
            self.chosen[layer, head] = [self.cache[layer][head][place].position for place in places]

    def _attend(self, query, entries, head):
        if self.reading and self.calibrates:
            self.rows[id(entries)].append(rotate(query[None], [self.position], self.theta)[0])
        if not self.reading:
            chosen = self.chosen.get(self._places()[id(entries)])
            entries = [e for e in entries if chosen is None or e.position in (*chosen, self.position)]
        return super()._attend(query, entries, head)
