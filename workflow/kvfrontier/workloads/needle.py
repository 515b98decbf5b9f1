"""`needle`: are statements that a long text hides still found when they are asked for?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from kvfrontier.metrics import (
    CONTEXT_TOKENS,
    CONTROL_NO_CONTEXT,
    RETENTION_CONTAINED,
    RETENTION_MARGIN,
    Measurement,
)
from kvfrontier.parameters import Count, PositiveInt, Share
from kvfrontier.sources.text import needed_data
from kvfrontier.strategies import STRATEGIES
from kvfrontier.workloads import workload
from kvfrontier.workloads._account import KVAccount, fact_survival, kept_counts, require_acted
from kvfrontier.workloads._choice import Feed, contains_value, greedy_answers, logits_after, margins
from kvfrontier.workloads._haystack import Haystack, hide
from kvfrontier.workloads._needles import Filler, Hunt, Kind, hunt, sentences
from kvfrontier.workloads.base import Workload, require_positions

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.engines.base import Sequences, Session
    from kvfrontier.plan.model import ModelSpec
    from kvfrontier.strategies.base import Strategy

QUESTION_TOKENS = 192  # more than a question and the beginning of its answer ever take


@dataclass(frozen=True)
class _Item:
    """A text and its number: the `request` of its measurements, the same for every strategy and depth."""

    number: int
    hunt: Hunt
    haystack: Haystack
    phases: list[str]  # of each needle that is asked for


@workload("needle")
class NeedleInAHaystack(Workload):
    """Hide statements in a text of exactly `context_tokens` tokens, compress, then ask for them.

    After RULER (Hsieh et al. 2024, arXiv:2404.06654), in words of our own and without its aggregation tasks: `single`;
    `multi_key` (several keys, one is asked for); `multi_value` (several values of one key, all asked for);
    `multi_query` (several keys, all asked for); `variable_tracking` (a chain of variables, all names asked for).

    Scored as there, on what the model writes: `retention_contained` is 1 for each value (`turn`) that stands in the
    greedy answer, so its mean is RULER's score. More strictly, it must stand there as a whole word, and in `multi_key`
    before any other key's value. Answers take decode steps, where strategies that fetch lose what they lose. Where one
    thing is asked for, `retention_margin` is a forced choice among `alternatives` numbers, too (right where above 0).

    Phases are depths (`depth=0`: before the first sentence; a chain's: where it starts, it goes on to the end in even
    steps). Every needle comes to every depth, in the same text (`request`). The question is not seen before the cache
    is compressed unless `question_seen`; the answer's beginning never is. `control_no_context`: the question alone,
    answered with the full cache. Bytes are of one text.

    `feed: steps`: the question and the choices come as decode steps. As a block they are read like a prompt, with all
    that is kept: what `infinigen` and its like choose a step has a part in the free answer alone.
    """

    references: ClassVar[tuple[str, ...]] = ("full",)
    needs: ClassVar[frozenset[str]] = frozenset({"steps", "logits", "kept_positions", "text"})
    gives: ClassVar[frozenset[str]] = frozenset({"oracle_span"})

    kind: Annotated[Kind, Field(description="What is hidden and asked for")] = "single"
    context_tokens: Annotated[int, Field(ge=128, description="Tokens of the text before the question, exact")] = 512
    depths: Annotated[tuple[Share, ...], Field(min_length=1, description="Where needles lie: 0 first, 1 last")] = (
        0.0,
        0.25,
        0.5,
        0.75,
        1.0,
    )
    samples: Annotated[PositiveInt, Field(description="Texts at each depth")] = 5
    needles: Annotated[
        int, Field(ge=2, le=8, description="Keys, values, queries or hops, as the kind says; single has one needle")
    ] = 4
    digits: Annotated[int, Field(ge=3, le=12, description="Of each number; RULER's have 7")] = 4
    filler: Annotated[
        Filler, Field(description="The text: five short sentences over and over, generated prose, natural texts")
    ] = "noise"
    question_seen: Annotated[bool, Field(description="Read the question, too, before the cache is compressed")] = False
    feed: Feed = "block"
    answer_prefix: Annotated[bool, Field(description="Begin the answer for the model, up to the first value")] = True
    answer_tokens: Annotated[PositiveInt, Field(description="Length of the answer")] = 32
    alternatives: Annotated[
        int, Field(ge=0, le=24, description="Numbers of a forced choice, where one is asked for; 0: none")
    ] = 10
    controls: Annotated[Count, Field(description="Texts whose question is asked without them, too")] = 4
    side_by_side: Annotated[PositiveInt, Field(description="Texts in one forward pass")] = 4

    @model_validator(mode="after")
    def _check(self) -> NeedleInAHaystack:
        if self.alternatives == 1:
            raise ValueError("alternatives: 0 for no forced choice, or 2 and more")
        if len(set(self.depths)) < len(self.depths):
            raise ValueError(f"each depth once, not {list(self.depths)}")
        return self

    def data(self) -> tuple[str, ...]:
        return needed_data("natural") if self.filler == "natural" else ()

    @property
    def task(self) -> str:
        return f"needle_{self.kind}"

    def check(self, spec: ModelSpec) -> None:
        """Raises Unsupported where text, question and answer do not fit the model's positions."""
        require_positions(
            spec, context_tokens=self.context_tokens, question=QUESTION_TOKENS, answer_tokens=self.answer_tokens
        )

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        account = KVAccount(session)
        width = self.side_by_side if self.feed == "block" else 1  # questions differ in length
        for shift in range(len(self.depths)):
            for start in range(0, self.samples, width):
                numbers = range(start, min(start + width, self.samples))
                batch = [self._item(session, number, shift, seed) for number in numbers]
                yield from self._ask(session, strategy, batch, account)
        yield from self._control(session, seed)
        yield from account.measurements()

    def _item(self, session: Session, number: int, shift: int, seed: int) -> _Item:
        made = hunt(self.kind, number, seed, self.needles, self.digits, self.alternatives)
        said = sentences(self.filler, f"{seed}-{number}", made.words)
        hidden = made.hidden(self.depths, shift)
        haystack = hide(session.tokenizer, made, hidden, said, self.context_tokens, self.answer_prefix)
        return _Item(number, made, haystack, [f"depth={depth:g}" for depth in made.phases(self.depths, shift)])

    def _ask(
        self, session: Session, strategy: Strategy, batch: Sequence[_Item], account: KVAccount
    ) -> Iterator[Measurement]:
        """Read the texts of a batch, compress, ask each its question; all measurements of the batch."""
        read, asked = zip(*(item.haystack.split(self.question_seen) for item in batch), strict=True)
        sequences = session.open(strategy)
        sequences.prefill(
            read, reserve_tokens=max(map(len, asked)) + self.answer_tokens, notes=list(map(_notes, batch, read))
        )
        kept, lengths = kept_counts(sequences), [len(row) for row in read]
        require_acted(session, strategy, kept, lengths)
        account.read("prefill", sequences)
        account.read_kept(kept, lengths)
        for item, length in zip(batch, lengths, strict=True):
            yield Measurement(CONTEXT_TOKENS, length, item.phases[0], request=item.number)
        yield from _survival(sequences.kept_positions(), batch)
        logits = logits_after(sequences, asked, self.feed)
        account.read("question", sequences)
        if batch[0].haystack.alternatives:
            offered = [item.haystack.alternatives for item in batch]
            right = [item.hunt.alternatives.index(item.hunt.asked[0].answer) for item in batch]
            for item, margin in zip(batch, margins(sequences, logits, offered, right, self.feed), strict=True):
                yield Measurement(RETENTION_MARGIN, margin, item.phases[0], request=item.number, turn=0)
        for item, found in zip(batch, self._found(session, sequences, logits, batch), strict=True):
            for turn, (phase, value) in enumerate(zip(item.phases, found, strict=True)):
                yield Measurement(RETENTION_CONTAINED, value, phase, request=item.number, turn=turn)
        account.read_fetched(strategy, sequences)

    def _found(self, session: Session, asked: Sequences, logits: Tensor, batch: Sequence[_Item]) -> list[list[float]]:
        """For each needle asked for, whether the greedy answer says it. Uses `asked` up."""
        answers = greedy_answers(asked, logits, session.tokenizer, self.answer_tokens)
        return [
            [
                float(contains_value(answer, needle.answer, [other.answer for _, other in item.hunt.others]))
                for needle in item.hunt.asked
            ]
            for item, answer in zip(batch, answers, strict=True)
        ]

    def _control(self, session: Session, seed: int) -> Iterator[Measurement]:
        """The questions alone, with the full cache: no strategy has a part in it, so a session measures it once."""
        memo = session.memo.setdefault(("needle control", self, seed), {})
        count = min(self.controls, self.samples)
        if count and not memo:
            batch = [self._item(session, number, 0, seed) for number in range(count)]
            asked = session.open(STRATEGIES.get("full")())
            logits = asked.prefill([item.haystack.alone for item in batch], reserve_tokens=self.answer_tokens)
            memo |= dict(enumerate(self._found(session, asked, logits, batch)))
        for number, found in memo.items():
            for turn, value in enumerate(found):
                yield Measurement(CONTROL_NO_CONTEXT, value, request=number, turn=turn)


def _notes(item: _Item, read: Sequence[int]) -> dict[str, list[float]]:
    """What `cache/notes.py` calls `oracle_span`."""
    spelled = {place for places in item.haystack.places for place in places}
    return {"oracle_span": [float(place in spelled) for place in range(len(read))]}


def _survival(kept: Sequence[Tensor], batch: Sequence[_Item]) -> Iterator[Measurement]:
    """kept: per layer [batch, kv_heads, slots] original positions."""
    for row, item in enumerate(batch):
        for turn, (phase, places) in enumerate(zip(item.phases, item.haystack.places, strict=True)):
            yield from fact_survival(kept, row, places, phase, item.number, turn)
