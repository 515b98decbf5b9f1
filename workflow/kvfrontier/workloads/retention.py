"""`retention`: is a fact from early in a chat still known when it is asked for later?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from kvfrontier.errors import Unsupported
from kvfrontier.metrics import (
    CONTEXT_TOKENS,
    CONTROL_NO_CONTEXT,
    CONTROL_RECENT_ONLY,
    RETENTION_CONTAINED,
    RETENTION_CORRECT,
    RETENTION_MARGIN,
    Measurement,
)
from kvfrontier.parameters import Count, PositiveInt, Share
from kvfrontier.sources.text import needed_data
from kvfrontier.workloads import workload
from kvfrontier.workloads._account import KVAccount, fact_survival, kept_counts, require_acted
from kvfrontier.workloads._chat import Chat, TurnCounter, encode, question_alone
from kvfrontier.workloads._choice import Feed, contains_value, greedy_answers, logits_after, margins, margins_of_full
from kvfrontier.workloads._conversation import Conversation, Filler, converse
from kvfrontier.workloads.base import Workload, require_positions

if TYPE_CHECKING:
    from torch import Tensor

    from kvfrontier.engines.base import Sequences, Session
    from kvfrontier.plan.model import ModelSpec
    from kvfrontier.strategies.base import Strategy

QUESTION_TOKENS = 64  # more than a question and the beginning of its answer ever take
RECENT_SHARE = 0.25  # of the context: what the recent-only control reads, if the fact is not in it


@dataclass(frozen=True)
class _Item:
    """A conversation, its tokens, and its number: the `request` of its measurements, the same for every strategy."""

    number: int
    conversation: Conversation
    chat: Chat


@workload("retention")
class Retention(Workload):
    """Tell a fact in a chat of about `context_tokens` tokens, compress, then ask for it.

    The cache is compressed before the question is seen; the question is asked on a copy. `forced_choice` compares the
    log-probabilities of `alternatives` values (chance 1/alternatives), the right measure for small models; `contains`
    looks for the value in a greedy answer. Phases are the depths of the fact: `depth=0` is the first turn.

    `fact_survival` is the share of the value's own tokens (said by the user and echoed) that a layer's head still
    keeps when the question comes. Bytes are of one conversation. The controls run with the full cache: the question
    alone, and only the turns after the fact (at most the last quarter); both should be near chance.

    `feed: steps`: question and answers come as decode steps. As a block they are read like a prompt, with all that is
    kept: what `infinigen` and its like choose a step has no part in that. What was fetched, and `achieved_budget` of
    such a strategy, are of the question's steps.
    """

    references: ClassVar[tuple[str, ...]] = ("full",)
    gives: ClassVar[frozenset[str]] = frozenset({"turns", "oracle_span"})

    context_tokens: Annotated[int, Field(ge=128, description="Tokens of the chat before the question, at most")] = 512
    depths: Annotated[tuple[Share, ...], Field(min_length=1, description="Where the fact is: 0 first turn, 1 last")] = (
        0.0,
        0.5,
    )
    conversations: Annotated[PositiveInt, Field(description="Conversations at each depth")] = 10
    distractors: Annotated[int, Field(ge=0, le=8, description="Facts of the same kind about other people")] = 0
    scoring: Annotated[Literal["forced_choice", "contains"], Field(description="How answers are judged")] = (
        "forced_choice"
    )
    alternatives: Annotated[int, Field(ge=2, le=24, description="Values to choose from, the right one among them")] = 20
    answer_prefix: Annotated[bool, Field(description="Begin the answer for the model, up to the value")] = True
    answer_tokens: Annotated[PositiveInt, Field(description="Length of a free answer")] = 16
    compress: Annotated[
        Literal["history", "every_turn"], Field(description="Once after the whole chat, or after each of its turns")
    ] = "history"
    feed: Feed = "block"
    filler: Annotated[Filler, Field(description="Turns around the fact: small talk, or passages of natural text")] = (
        "templated"
    )
    controls: Annotated[Count, Field(description="Conversations, at each depth, that the controls are measured on")] = 4
    side_by_side: Annotated[PositiveInt, Field(description="Conversations in one forward pass")] = 4

    @model_validator(mode="after")
    def _check(self) -> Retention:
        if self.distractors >= self.alternatives:
            raise ValueError(f"distractors are among the {self.alternatives} alternatives: use fewer of them")
        if len(set(self.depths)) < len(self.depths):
            raise ValueError(f"each depth once, not {list(self.depths)}")
        return self

    def data(self) -> tuple[str, ...]:
        return needed_data("natural") if self.filler == "natural" else ()

    @property
    def needs(self) -> frozenset[str]:
        """`turns`: an engine whose strategies act again on what comes after the first reading."""
        always = {"steps", "logits", "kept_positions", "text"}
        return frozenset(always | {"turns"} if self.compress == "every_turn" else always)

    @property
    def task(self) -> str:
        return f"retention_{self.scoring}"

    def check(self, spec: ModelSpec) -> None:
        """Raises Unsupported where chat, question and answer do not fit the model's positions."""
        require_positions(
            spec, context_tokens=self.context_tokens, question=QUESTION_TOKENS, answer_tokens=self.answer_tokens
        )

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        account = KVAccount(session)
        for depth in self.depths:
            items = self._items(session, depth, seed)
            phase = f"depth={depth:g}"
            # Turns differ in number, questions in length.
            width = self.side_by_side if self.compress == "history" and self.feed == "block" else 1
            for start in range(0, len(items), width):
                batch = items[start : start + width]
                yield from self._ask(session, strategy, batch, phase, account)
            yield from self._controls(session, items[: self.controls], phase, (depth, seed))
        yield from account.measurements()

    def _items(self, session: Session, depth: float, seed: int) -> list[_Item]:
        count = TurnCounter(session.tokenizer)
        items = []
        for number in range(self.conversations):
            conversation = converse(
                number, depth, seed, self._fits(count), self.alternatives, self.distractors, self.filler
            )
            if (tokens := count(conversation.turns)) > self.context_tokens:
                raise Unsupported(
                    f"context_tokens {self.context_tokens}: facts and distractors alone take {tokens} tokens"
                )
            items.append(_Item(number, conversation, encode(session.tokenizer, conversation, self.answer_prefix)))
        return items

    def _fits(self, count: TurnCounter):
        return lambda turns: count(turns) <= self.context_tokens

    def _ask(
        self, session: Session, strategy: Strategy, batch: Sequence[_Item], phase: str, account: KVAccount
    ) -> Iterator[Measurement]:
        """Read the chats of a batch, compress, ask each its question; all measurements of the batch."""
        read = self._read(session, strategy, [item.chat for item in batch])
        kept = kept_counts(read)
        lengths = [len(item.chat.history) for item in batch]
        require_acted(session, strategy, kept, lengths, at_most=self.compress == "every_turn")
        account.read("prefill", read)
        account.read_kept(kept, lengths)
        yield from (
            Measurement(CONTEXT_TOKENS, n, phase, request=item.number) for item, n in zip(batch, lengths, strict=True)
        )
        positions = read.kept_positions()
        for row, item in enumerate(batch):
            yield from fact_survival(positions, row, item.chat.value_positions, phase, item.number)
        asked = read.fork()
        logits = logits_after(asked, [item.chat.question for item in batch], self.feed)
        account.read("question", asked)
        yield from self._judge(session, batch, asked, logits, phase)
        account.read_fetched(strategy, asked)

    def _read(self, session: Session, strategy: Strategy, chats: Sequence[Chat]) -> Sequences:
        later = QUESTION_TOKENS + self.answer_tokens
        sequences = session.open(strategy)
        if self.compress == "history":
            notes = [chat.notes for chat in chats]
            sequences.prefill([chat.history for chat in chats], reserve_tokens=later, notes=notes)
            return sequences
        (chat,) = chats
        reserve = len(chat.history) - len(chat.turns[0]) + later
        first, *others = chat.notes_by_turn()
        sequences.prefill([chat.turns[0]], reserve_tokens=reserve, notes=[first])
        for turn, notes in zip(chat.turns[1:], others, strict=True):
            sequences.extend([turn], notes=[notes])
        return sequences

    def _judge(
        self, session: Session, batch: Sequence[_Item], asked: Sequences, logits: Tensor, phase: str
    ) -> Iterator[Measurement]:
        if self.scoring == "contains":
            answers = greedy_answers(asked, logits, session.tokenizer, self.answer_tokens)
            for item, answer in zip(batch, answers, strict=True):
                found = contains_value(answer, item.conversation.value, item.conversation.distractors)
                yield Measurement(RETENTION_CONTAINED, float(found), phase, request=item.number, turn=_distance(item))
            return
        for item, margin in zip(batch, margins(asked, logits, *_choices(batch), self.feed), strict=True):
            yield Measurement(RETENTION_CORRECT, float(margin > 0), phase, request=item.number, turn=_distance(item))
            yield Measurement(RETENTION_MARGIN, margin, phase, request=item.number, turn=_distance(item))

    def _controls(
        self, session: Session, items: Sequence[_Item], phase: str, key: tuple[float, int]
    ) -> Iterator[Measurement]:
        """Forced choice with the full cache from the question alone, and from the turns after the fact.

        The strategy has no part in it, so a session measures it once for all cells of this workload.
        """
        if not items:
            return
        found = session.memo.setdefault(("retention controls", self, key), {})
        if not found:
            tokenizer, most = session.tokenizer, int(RECENT_SHARE * self.context_tokens)
            alone = [question_alone(tokenizer, item.conversation, self.answer_prefix) for item in items]
            recent = [
                item.chat.after_fact(most) + item.chat.question if item.chat.after_fact(most) else question
                for item, question in zip(items, alone, strict=True)
            ]
            found[CONTROL_NO_CONTEXT] = margins_of_full(session, alone, *_choices(items))
            found[CONTROL_RECENT_ONLY] = margins_of_full(session, recent, *_choices(items))
        for metric, by_item in found.items():
            for item, margin in zip(items, by_item, strict=True):
                yield Measurement(metric, float(margin > 0), phase, request=item.number)


def _choices(items: Sequence[_Item]) -> tuple[list[list[list[int]]], list[int]]:
    """What may be answered to each item's question, and the place of what is right."""
    return [item.chat.alternatives for item in items], [item.conversation.right for item in items]


def _distance(item: _Item) -> int:
    """Turns between the fact's and the question's."""
    return len(item.conversation.turns) - 1 - item.conversation.fact_turn
