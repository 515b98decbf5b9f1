"""lm-eval's idea of a model, answered by a session: each context is read once, compressed, and asked from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from torch import Tensor

from kvfrontier.engines.base import Sequences, Session
from kvfrontier.errors import KVFrontierError, Unsupported
from kvfrontier.strategies.base import Strategy
from kvfrontier.workloads._account import KVAccount, kept_counts, require_acted
from kvfrontier.workloads._choice import Feed, logits_after
from kvfrontier.workloads._scoring import Question, Score, batches, score_after, score_at_once

Request = tuple[tuple[str, str], list[int], list[int]]
"""Context and continuation, as text and as token ids."""
DEFAULT_ANSWER_TOKENS = 256  # what lm-eval's own models take where a task says nothing
STOP_TOKENS = 32  # of an answer's end are looked at for a stop sequence


@dataclass(frozen=True)
class Read:
    """What became of one context.

    tokens: of the context. held: of those, what a KV head still had when the first continuation came (mean over layers
    and heads): the kept ones, and the ones held back from the compression. lost: those that the compression took.
    """

    tokens: int
    held: float
    lost: float


@dataclass(frozen=True)
class Protocol:
    """How a document is asked: fields of the workload of the same names; `at_once` is its `protocol: one_pass`."""

    at_once: bool
    held_back_tokens: int
    held_back_from: str
    feed: Feed
    side_by_side: int


class SessionLM(TemplateLM):
    """Prompts, few-shot examples and metrics are lm-eval's; log-likelihoods and greedy answers come from `session`.

    How texts become tokens is as in lm-eval's HFLM. Nothing is ever truncated: what does not fit raises Unsupported.
    """

    def __init__(self, session: Session, strategy: Strategy, protocol: Protocol, account: KVAccount):
        super().__init__()
        self.session, self.strategy, self.protocol, self.account = session, strategy, protocol, account
        self.tokenizer = session.tokenizer
        self.reads: dict[str, Read] = {}
        """By context."""

    @property
    def eot_token_id(self) -> int:
        """End of text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What stands for an empty context."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids; special tokens as the tokenizer adds them, unless the text brings its own."""
        if add_special_tokens is None:
            add_special_tokens = not has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id))
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def _loglikelihood_tokens(self, requests: list[Request], **_: Any) -> list[Score]:
        told = [request for request in requests if request[0][0]]
        if told and len(told) < len(requests):
            return self._with_and_without_context(requests, told)
        same: dict[tuple[int, ...], list[int]] = {}
        for place, (_, context, _) in enumerate(requests):
            same.setdefault(tuple(context), []).append(place)
        questions = [
            self._question(requests[places[0]][0][0], context, [requests[place][2] for place in places])
            for context, places in same.items()
        ]
        found: dict[int, Score] = {}
        for number, scores, read in self._scored(questions):
            for place, score in zip(same[questions[number].context], scores, strict=True):
                found[place] = score
                self.reads[requests[place][0][0]] = read
        return [found[place] for place in range(len(requests))]

    def _with_and_without_context(self, requests: list[Request], told: list[Request]) -> list[Score]:
        """How likely an answer is after nothing (`acc_mutual_info`) is asked beside the documents: no context to hold
        anything back of, and what the cache has of it does not count."""
        protocol = replace(self.protocol, held_back_from="")
        nothing = SessionLM(self.session, self.strategy, protocol, KVAccount(self.session))
        after_nothing = iter(nothing._loglikelihood_tokens([request for request in requests if not request[0][0]]))
        after_context = iter(self._loglikelihood_tokens(told))
        self.reads |= nothing.reads
        return [next(after_context if request[0][0] else after_nothing) for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy answers up to a stop sequence, which is not part of them."""
        if self.protocol.at_once:
            raise Unsupported("protocol one_pass reads an answer that is known; this task's answers are generated")
        asked = [self._generation(request) for request in requests]
        questions = [question for question, _, _ in asked]
        answers: dict[int, str] = {}
        feed = self.protocol.feed
        for places in batches(questions, self.protocol.side_by_side if feed == "block" else 1):  # steps: of one length
            batch = [questions[place] for place in places]
            read, logits, reads = self._read(batch, max(asked[place][2] for place in places))
            if any(rests := [question.rest(()) for question in batch]):
                logits = logits_after(read, rests, feed)
            limits = [asked[place][1:] for place in places]
            for place, text, one in zip(places, self._answer(read, logits, limits), reads, strict=True):
                answers[place] = text
                self.reads[requests[place].args[0]] = one
            self.account.read_fetched(self.strategy, read)
        return [answers[place] for place in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Refused: a text that is only predicted has no context that could be compressed before."""
        raise Unsupported("a task that measures the perplexity of whole texts; `fidelity` has the like under a cache")

    def _question(self, text: str, context: Sequence[int], continuations: Sequence[Sequence[int]]) -> Question:
        total, held_back = len(context), self.protocol.held_back_tokens
        longest = total + max(map(len, continuations), default=1) - 1
        limit = self.session.spec.max_positions
        if limit is not None and longest > limit:
            raise Unsupported(f"a document has {longest} tokens, {self.session.spec.name} {limit} positions")
        if marker := self.protocol.held_back_from:
            if marker not in text:
                raise KVFrontierError(f"held_back_from {marker!r} does not stand in every context: {text[-200:]!r}")
            held_back = max(held_back, total - len(self.tok_encode(text[: text.rindex(marker)])))
        return Question(tuple(context), max(1, total - held_back), tuple(map(tuple, continuations)))

    def _scored(self, questions: Sequence[Question]) -> Iterator[tuple[int, list[Score], Read]]:
        """Number of each question, scores of its continuations, what became of its context."""
        if self.protocol.at_once:
            scores = score_at_once(self.session, self.strategy, questions, self.protocol.side_by_side)
            for number, question in enumerate(questions):
                yield number, scores[number], Read(len(question.context), len(question.context), 0)
            return
        for places in batches(questions, self.protocol.side_by_side):
            batch = [questions[place] for place in places]
            read, logits, reads = self._read(batch, 0)
            scores = score_after(read, logits, batch, self.protocol.feed)
            self.account.read_fetched(self.strategy, read)
            yield from zip(places, scores, reads, strict=True)

    def _read(self, batch: Sequence[Question], more_tokens: int) -> tuple[Sequences, Tensor, list[Read]]:
        """The contexts read and compressed; logits [batch, vocab] after what was read."""
        rest = max((len(rest) for question in batch for rest in question.rests), default=0)
        sequences, lengths = self.session.open(self.strategy), [question.read for question in batch]
        logits = sequences.prefill(
            [list(question.context[: question.read]) for question in batch], reserve_tokens=rest + more_tokens
        )
        kept = kept_counts(sequences)
        require_acted(self.session, self.strategy, kept, lengths)
        self.account.read("prefill", sequences)
        self.account.read_kept(kept, lengths)
        means = (sum(counts.double().mean(1) for counts in kept) / len(kept)).tolist()
        reads = [
            Read(len(question.context), mean + len(question.context) - question.read, question.read - mean)
            for question, mean in zip(batch, means, strict=True)
        ]
        return sequences, logits, reads

    def _generation(self, request: Instance) -> tuple[Question, list[str], int]:
        """A context as a question, where its answer stops, and how many tokens it has at most."""
        text, settings = request.args
        settings = normalize_gen_kwargs(settings, DEFAULT_ANSWER_TOKENS)
        if settings.get("do_sample"):
            raise Unsupported("this task draws its answers at random; here they are greedy")
        stops = handle_stop_sequences(settings.get("until"), eos=self.tokenizer.decode(self.eot_token_id))
        most = settings["max_gen_toks"]
        context = self.tok_encode(text)
        return self._question(text, context, [(0,) * (most + 1)]), stops, most

    def _answer(self, asked: Sequences, logits: Tensor, limits: Sequence[tuple[list[str], int]]) -> list[str]:
        """Text of each row's greedy answer. limits: where it stops, and its most tokens. Uses `asked` up."""
        rows: list[list[int]] = [[] for _ in limits]
        open_rows = set(range(len(rows)))
        while True:
            tokens = logits.argmax(-1).tolist()
            for number in sorted(open_rows):
                rows[number].append(tokens[number])
                if self._has_ended(rows[number], *limits[number]):
                    open_rows.remove(number)
            if not open_rows:
                break
            logits = asked.decode(tokens)
        return [self._text(row, stops) for row, (stops, _) in zip(rows, limits, strict=True)]

    def _has_ended(self, row: list[int], stops: Sequence[str], most: int) -> bool:
        if row[-1] == self.eot_token_id or len(row) >= most:
            return True
        end = self.tokenizer.decode(row[-STOP_TOKENS:])
        return any(stop in end for stop in stops)

    def _text(self, row: list[int], stops: list[str]) -> str:
        text = self.tokenizer.decode(row, skip_special_tokens=True)
        return postprocess_generated_text(text, stops, None)
