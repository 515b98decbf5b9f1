"""`multi_turn`: one cache carried through a chat, and what of it is still known k turns after it was told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from kvfrontier.metrics import (
    CONTEXT_TOKENS,
    CONTROL_NO_CONTEXT,
    CONTROL_RECENT_ONLY,
    RETENTION_CONTAINED,
    RETENTION_CORRECT,
    RETENTION_MARGIN,
    SECOND_QUESTION_CORRECT,
    SECOND_QUESTION_MARGIN,
    Measurement,
)
from kvfrontier.parameters import Count, PositiveInt
from kvfrontier.sources.text import needed_data
from kvfrontier.workloads import workload
from kvfrontier.workloads._account import KVAccount, fact_survival, kept_counts, require_acted
from kvfrontier.workloads._chat import question_alone
from kvfrontier.workloads._choice import Feed, contains_value, greedy_answers, logits_after, margins, margins_of_full
from kvfrontier.workloads._conversation import Filler
from kvfrontier.workloads._script import FACT_TURN, FACTS, script
from kvfrontier.workloads._talk import Moment, Talk, Way, moments, talk
from kvfrontier.workloads.base import Workload, require_positions

if TYPE_CHECKING:
    from kvfrontier.engines.base import Sequences, Session
    from kvfrontier.strategies.base import Strategy

RECENT_SHARE = 0.25  # of the chat: what the recent-only control reads, after the facts at most


@workload("multi_turn")
class MultiTurn(Workload):
    """Tell two facts in the second turn of a chat, let it go on, ask for them `distances` turns later.

    `cache: persistent` carries one cache through the chat and compresses it after every turn. What is asked is asked on
    copies, so no question changes what comes later, and none is seen before the compression. `re_prefilled` reads the
    chat so far anew before every question and compresses it once, as a server does that keeps no cache between
    requests; with the full cache both are the same.

    Phases are distances (`distance=4`: after four more turns); `turn` is which of the two facts was asked for. With
    `second_question` each is also asked after the other one was asked for and rightly answered, in a turn of the chat
    (`second_question_correct`): what the first question attends to may have pushed out what the second needs (SCBench,
    Li et al. 2024, arXiv:2412.10319, asks several questions of one cache, too, in longer tasks).

    `scoring`, `feed`, `fact_survival` and the controls are as in `retention`; `retention_margin` comes with both ways
    to score. Turns are read at once whatever `feed` says, the answered one among them. Bytes are of one chat, at its
    end.
    """

    references: ClassVar[tuple[str, ...]] = ("full",)
    gives: ClassVar[frozenset[str]] = frozenset({"turns", "oracle_span"})

    distances: Annotated[
        tuple[PositiveInt, ...], Field(min_length=1, description="Turns from the facts to the questions")
    ] = (1, 2, 4, 8)
    conversations: Annotated[PositiveInt, Field(description="Number of chats")] = 6
    cache: Annotated[
        Way, Field(description="One cache, compressed after every turn, or the chat read anew before every question")
    ] = "persistent"
    second_question: Annotated[bool, Field(description="Ask for each fact after the other one, too, on one cache")] = (
        True
    )
    distractors: Annotated[int, Field(ge=0, le=8, description="Turns with facts of the same kinds about others")] = 0
    scoring: Annotated[Literal["forced_choice", "contains"], Field(description="How answers are judged")] = (
        "forced_choice"
    )
    alternatives: Annotated[int, Field(ge=2, le=24, description="Values to choose from, the right one among them")] = 20
    answer_prefix: Annotated[bool, Field(description="Begin the answer for the model, up to the value")] = True
    answer_tokens: Annotated[PositiveInt, Field(description="Length of a free answer")] = 16
    feed: Feed = "block"
    filler: Annotated[Filler, Field(description="The other turns: small talk, or passages of natural text")] = (
        "templated"
    )
    controls: Annotated[Count, Field(description="Chats that the controls are measured on")] = 4
    side_by_side: Annotated[PositiveInt, Field(description="Chats in one forward pass")] = 4

    @model_validator(mode="after")
    def _check(self) -> MultiTurn:
        if self.distractors > FACTS * (self.alternatives - 1):
            raise ValueError(f"distractors are among the {self.alternatives} alternatives: use fewer of them")
        if self.distractors > (turns := FACT_TURN + max(self.distances)):
            raise ValueError(f"{self.distractors} distractors in {turns} turns: use fewer, or a longer distance")
        if len(set(self.distances)) < len(self.distances):
            raise ValueError(f"each distance once, not {list(self.distances)}")
        return self

    def data(self) -> tuple[str, ...]:
        return needed_data("natural") if self.filler == "natural" else ()

    @property
    def needs(self) -> frozenset[str]:
        """`turns`: an engine whose strategies act again on what comes after the first reading."""
        always = {"steps", "logits", "kept_positions", "text"}
        return frozenset(always | {"turns"} if self.cache == "persistent" else always)

    @property
    def task(self) -> str:
        return f"multi_turn_{self.scoring}"

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        account = KVAccount(session)
        talks = [self._talk(session, number, seed) for number in range(self.conversations)]
        width = self.side_by_side if self.feed == "block" else 1  # questions differ in length
        for start in range(0, len(talks), width):
            batch = talks[start : start + width]
            later = max(one.later_tokens for one in batch) + self.answer_tokens
            for moment in moments(self.cache, session, strategy, batch, self.distances, later):
                yield from self._state(session, strategy, batch, moment, account)
                yield from self._ask(session, strategy, batch, moment, account)
        yield from self._controls(session, talks[: self.controls], seed)
        yield from account.measurements()

    def _talk(self, session: Session, number: int, seed: int) -> Talk:
        """Raises Unsupported where chat, questions and answer do not fit the model's positions."""
        told = script(number, seed, max(self.distances), self.alternatives, self.distractors, self.filler)
        one = talk(session.tokenizer, number, told, self.answer_prefix)
        free = self.answer_tokens if self.scoring == "contains" else 0
        require_positions(session.spec, chat=one.tokens, questions=one.later_tokens, answer_tokens=free)
        return one

    def _state(
        self, session: Session, strategy: Strategy, batch: Sequence[Talk], moment: Moment, account: KVAccount
    ) -> Iterator[Measurement]:
        """What the cache holds before anything is asked."""
        kept, lengths = kept_counts(moment.cache), moment.cache.seen_tokens
        require_acted(session, strategy, kept, lengths, at_most=self.cache == "persistent")
        if moment.distance == max(self.distances):
            account.read("prefill", moment.cache)
            account.read_kept(kept, lengths)
        positions, phase = moment.cache.kept_positions(), _phase(moment)
        for row, one in enumerate(batch):
            yield Measurement(CONTEXT_TOKENS, lengths[row], phase, request=one.number)
            for fact, chat in enumerate(one.chats):
                yield from fact_survival(positions, row, chat.value_positions, phase, one.number, fact)

    def _ask(
        self, session: Session, strategy: Strategy, batch: Sequence[Talk], moment: Moment, account: KVAccount
    ) -> Iterator[Measurement]:
        correct = RETENTION_CONTAINED if self.scoring == "contains" else RETENTION_CORRECT
        for fact in range(FACTS):
            caches = {(correct, RETENTION_MARGIN): moment.cache.fork()}
            if self.second_question:
                caches[SECOND_QUESTION_CORRECT, SECOND_QUESTION_MARGIN] = moment.after((fact + 1) % FACTS)
            for metrics, asked in caches.items():
                for one, values in zip(batch, self._judged(session, batch, fact, asked), strict=True):
                    for metric, value in zip(metrics, values, strict=True):
                        yield Measurement(metric, value, _phase(moment), request=one.number, turn=fact)
                account.read_fetched(strategy, asked)

    def _judged(
        self, session: Session, batch: Sequence[Talk], fact: int, asked: Sequences
    ) -> list[tuple[float, float]]:
        """For each chat, whether the fact is answered right, and by what margin. Uses `asked` up."""
        logits = logits_after(asked, [one.chats[fact].question for one in batch], self.feed)
        by_chat = margins(asked, logits, *_choices(batch, fact), self.feed)
        if self.scoring == "forced_choice":
            return [(float(margin > 0), margin) for margin in by_chat]
        answers = greedy_answers(asked, logits, session.tokenizer, self.answer_tokens)
        found = [
            contains_value(answer, one.told[fact].value, one.told[fact].distractors)
            for one, answer in zip(batch, answers, strict=True)
        ]
        return [(float(right), margin) for right, margin in zip(found, by_chat, strict=True)]

    def _controls(self, session: Session, talks: Sequence[Talk], seed: int) -> Iterator[Measurement]:
        """Forced choice with the full cache from the question alone, and from the turns after the facts.

        The strategy has no part in it, so a session measures it once for all cells of this workload.
        """
        found = session.memo.setdefault(("multi_turn controls", self, seed), {})
        for fact in range(FACTS) if talks and not found else ():
            alone = [question_alone(session.tokenizer, one.told[fact], self.answer_prefix) for one in talks]
            recent = [
                after + one.chats[fact].question if (after := one.after_facts(int(RECENT_SHARE * one.tokens))) else bare
                for one, bare in zip(talks, alone, strict=True)
            ]
            for metric, prompts in ((CONTROL_NO_CONTEXT, alone), (CONTROL_RECENT_ONLY, recent)):
                found[metric, fact] = margins_of_full(session, prompts, *_choices(talks, fact))
        for (metric, fact), by_chat in found.items():
            for one, margin in zip(talks, by_chat, strict=True):
                yield Measurement(metric, float(margin > 0), request=one.number, turn=fact)


def _phase(moment: Moment) -> str:
    return f"distance={moment.distance}"


def _choices(batch: Sequence[Talk], fact: int) -> tuple[list[list[list[int]]], list[int]]:
    """What may be answered to each chat's question for a fact, and the place of what is right."""
    return [one.chats[fact].alternatives for one in batch], [one.told[fact].right for one in batch]
