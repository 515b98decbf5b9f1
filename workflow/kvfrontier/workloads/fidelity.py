"""`fidelity`: how far the next-token distributions drift from the full cache's on natural text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from kvfrontier.metrics import CONTEXT_TOKENS, KL_DIVERGENCE, NLL, TOP1_AGREEMENT, Measurement
from kvfrontier.parameters import PositiveInt
from kvfrontier.sources.text import TextKind, exact_prompts, needed_data
from kvfrontier.strategies import STRATEGIES
from kvfrontier.workloads import workload
from kvfrontier.workloads._account import KVAccount, kept_counts, require_acted
from kvfrontier.workloads.base import Workload, require_positions

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.engines.base import Sequences, Session
    from kvfrontier.plan.model import ModelSpec
    from kvfrontier.strategies.base import Strategy

REFERENCES_HELD_BYTES = 512 * 2**20  # host memory that a session may keep for references


@dataclass
class _Run:
    """One strategy over all documents. log_probs: per document [continuation_tokens, vocab] on the host, float32."""

    log_probs: list[Tensor]
    account: list[Measurement]

    @property
    def held_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.log_probs)


@workload("fidelity")
class Fidelity(Workload):
    """Read `context_tokens` of a document, compress, then feed it on token by token (teacher forcing).

    After each fed token the next-token distribution is compared with the full cache's: `kl_divergence` = KL(full ||
    strategy) in nats, `top1_agreement` of the argmax, `nll` of the true next token. The distribution right after the
    prefill is left out: no strategy has acted on it yet. `request` is the document, `turn` the step. Each fed token is
    a decode step in the strategy's sense, so what it evicts while decoding counts. Bytes are of one document; ages of
    kept tokens (`kept_age_share`) are taken at the end.

    A strategy that looks at whole sequences (`h2o_oracle_mask`) gets context and continuation in one pass.

    The full cache's run is the reference of all cells of a session, and is the answer of the cell `full` itself.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"steps", "logits", "kept_positions", "text"})
    references: ClassVar[tuple[str, ...]] = ("full",)
    gives: ClassVar[frozenset[str]] = frozenset({"whole_sequence"})

    context_tokens: Annotated[PositiveInt, Field(description="Tokens read before the cache is compressed, exact")] = 512
    continuation_tokens: Annotated[PositiveInt, Field(description="Steps compared after it")] = 32
    documents: Annotated[PositiveInt, Field(description="Number of texts")] = 4
    text: Annotated[TextKind, Field(description="Natural documents, or generated ones (no download)")] = "natural"
    side_by_side: Annotated[PositiveInt, Field(description="Documents in one forward pass")] = 4

    def data(self) -> tuple[str, ...]:
        return needed_data(self.text)

    def check(self, spec: ModelSpec) -> None:
        """Raises Unsupported where context and continuation do not fit the model's positions."""
        require_positions(spec, context_tokens=self.context_tokens, continuation_tokens=self.continuation_tokens)

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        length = self.context_tokens + self.continuation_tokens + 1  # the last token is only predicted
        texts = exact_prompts(session.tokenizer, self.text, self.documents, length, seed)
        full = STRATEGIES.get("full")()
        reference = self._reference(session, full, texts, seed)
        own = reference if strategy == full else self._feed(session, strategy, texts)
        for request, text in enumerate(texts):
            yield Measurement(CONTEXT_TOKENS, self.context_tokens, request=request)
            targets = text[self.context_tokens + 1 :]
            for step, values in enumerate(compare(reference.log_probs[request], own.log_probs[request], targets)):
                yield from (Measurement(metric, value, request=request, turn=step) for metric, value in values.items())
        yield from own.account

    def _reference(self, session: Session, full: Strategy, texts: list[list[int]], seed: int) -> _Run:
        """The full cache's run, once a session; the oldest references go when they take too much memory."""
        held: dict[tuple[Fidelity, int], _Run] = session.memo.setdefault("fidelity references", {})
        key = (self, seed)
        if key not in held:
            held[key] = self._feed(session, full, texts)
            while len(held) > 1 and sum(run.held_bytes for run in held.values()) > REFERENCES_HELD_BYTES:
                del held[next(iter(held))]
        return held[key]

    def _feed(self, session: Session, strategy: Strategy, texts: list[list[int]]) -> _Run:
        account = KVAccount(session)
        log_probs: list[Tensor] = []
        for start in range(0, len(texts), self.side_by_side):
            log_probs += self._feed_batch(session, strategy, texts[start : start + self.side_by_side], account)
        return _Run(log_probs, list(account.measurements()))

    def _feed_batch(
        self, session: Session, strategy: Strategy, texts: Sequence[list[int]], account: KVAccount
    ) -> list[Tensor]:
        """Log-probabilities [continuation_tokens, vocab] of each text of one batch."""
        import torch

        sequences = session.open(strategy)
        if "whole_sequence" in strategy.requires():
            read = self.context_tokens + self.continuation_tokens
            logits = sequences.score([text[:read] for text in texts], last=self.continuation_tokens)
            steps = list(logits.float().log_softmax(-1).cpu().unbind(1))
        else:
            steps = self._step(sequences, texts, account)
        account.read("decode", sequences)
        kept = kept_counts(sequences)
        require_acted(session, strategy, kept, [self.context_tokens] * len(texts), self.continuation_tokens)
        account.read_kept(kept, sequences.seen_tokens)
        account.read_ages(sequences)
        account.read_fetched(strategy, sequences)
        return list(torch.stack(steps, dim=1))

    def _step(self, sequences: Sequences, texts: Sequence[list[int]], account: KVAccount) -> list[Tensor]:
        """Log-probabilities [batch, vocab] after each fed token."""
        sequences.prefill([text[: self.context_tokens] for text in texts], reserve_tokens=self.continuation_tokens)
        account.read("prefill", sequences)
        steps = []
        for place in range(self.context_tokens, self.context_tokens + self.continuation_tokens):
            logits = sequences.decode([text[place] for text in texts])
            steps.append(logits.float().log_softmax(-1).cpu())
        return steps


def compare(reference: Tensor, own: Tensor, targets: Sequence[int]) -> list[dict[str, float]]:
    """The measurements of each step. reference, own: log-probabilities [steps, vocab]; targets: true next tokens."""
    import torch

    divergence = (reference.exp() * (reference - own)).sum(-1).clamp_min(0)  # rounding gives -1e-8 where both are equal
    agreement = (reference.argmax(-1) == own.argmax(-1)).float()
    surprise = -own[torch.arange(len(targets)), torch.tensor(targets)]
    rows = zip(divergence.tolist(), agreement.tolist(), surprise.tolist(), strict=True)
    return [{KL_DIVERGENCE: kl, TOP1_AGREEMENT: same, NLL: nll} for kl, same, nll in rows]
