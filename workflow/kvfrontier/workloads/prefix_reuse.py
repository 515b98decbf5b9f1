"""`prefix_reuse`: what a cache of prefixes saves where chats share a system prompt and go on turn after turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from kvfrontier.engines.base import Generation, Request
from kvfrontier.errors import KVFrontierError
from kvfrontier.metrics import (
    CONTEXT_TOKENS,
    FOUND_TOKENS,
    KV_WASTE_BYTES,
    OUTPUT_TOKENS_PER_S,
    PREEMPTIONS,
    PREFIX_HIT_RATE,
    READ_TOKENS,
    TPOT_S,
    TTFT_S,
    Measurement,
)
from kvfrontier.parameters import Count, PositiveInt
from kvfrontier.sources.text import TextKind, needed_data
from kvfrontier.workloads import workload
from kvfrontier.workloads._served_chat import Frame, exact_texts, frame_of
from kvfrontier.workloads._serving import achieved, require_served, tpot_s
from kvfrontier.workloads.base import Workload, require_positions

if TYPE_CHECKING:
    from kvfrontier.engines.base import Session
    from kvfrontier.plan.model import ModelSpec
    from kvfrontier.strategies.base import Strategy


@workload("prefix_reuse")
class PrefixReuse(Workload):
    """Chats behind one system prompt; a turn's prompt is all that was said before, the engine's own answers included.

    It begins with nothing cached; what is found after that is counted, never refused. With and without: sweep the
    engine's own setting (`enable_prefix_caching: [false, true]`). Values of a turn have the chat in `request` and its
    number in `turn`, both from 0. `prefix_hit_rate` of a turn has the phase `turn`; without one it is of all prompts.
    """

    exclusive: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"schedule", "text"})

    chats: Annotated[PositiveInt, Field(description="Chats with the same system prompt")] = 4
    at_once: Annotated[
        PositiveInt, Field(description="Chats whose turns are served together; with 1 no request waits for another")
    ] = 1
    turns: Annotated[PositiveInt, Field(description="Turns of a chat")] = 4
    system_tokens: Annotated[PositiveInt, Field(description="Tokens of the system prompt, exact")] = 512
    message_tokens: Annotated[PositiveInt, Field(description="Tokens of what the user says in a turn, exact")] = 64
    output_tokens: Annotated[int, Field(ge=2, description="Output tokens of a turn, forced")] = 16
    warmup_output_tokens: Annotated[Count, Field(description="Output tokens of the warm-up; 0: no warm-up")] = 4
    text: Annotated[TextKind, Field(description="Natural documents, or generated ones (no download)")] = "natural"

    def data(self) -> tuple[str, ...]:
        return needed_data(self.text)

    def check(self, spec: ModelSpec) -> None:
        """Raises Unsupported where a whole chat does not fit the model's positions."""
        said = self.turns * (self.message_tokens + self.output_tokens)
        require_positions(spec, system_tokens=self.system_tokens, turns=said)

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        frame = frame_of(session.tokenizer)
        system, messages, other = self._texts(session, seed)
        opening = [*frame.opening, *system, *frame.before_first]
        self._require_length(session.spec, frame, opening)
        if self.warmup_output_tokens:
            session.generate(strategy, [other], min(self.warmup_output_tokens, self.output_tokens))
        session.free_unused()
        totals = Totals()
        for start in range(0, self.chats, self.at_once):
            rows = range(start, min(start + self.at_once, self.chats))
            histories = {row: list(opening) for row in rows}
            for turn in range(self.turns):
                for row, history in histories.items():
                    history += [*(frame.before_next if turn else ()), *messages[row][turn], *frame.before_answer]
                requests = [Request(list(history), self.output_tokens) for history in histories.values()]
                generation = session.serve(strategy, requests, may_find=True)
                require_served(generation, requests)
                if not totals.batches and generation.found_tokens[0]:
                    raise KVFrontierError(
                        f"{generation.found_tokens[0]} tokens of the very first prompt were found in a cache"
                    )
                totals.add(requests, generation)
                yield from _turn(turn, rows, requests, generation)
                for history, said in zip(histories.values(), generation.tokens, strict=True):
                    history += said
        yield from totals.measurements()
        yield from achieved(generation)

    def _require_length(self, spec: ModelSpec, frame: Frame, opening: Sequence[int]) -> None:
        """As `check`, with what the template puts in between."""
        said = self.turns * (self.message_tokens + self.output_tokens + frame.turn_tokens)
        require_positions(spec, opening=len(opening), turns=said - len(frame.before_next))

    def _texts(self, session: Session, seed: int) -> tuple[list[int], list[list[list[int]]], list[int]]:
        """The system prompt, the messages of each chat by turn, and a text that serves none of them."""
        whole = max(self.system_tokens, self.turns * self.message_tokens)
        other, system, *texts = exact_texts(session.tokenizer, self.text, self.chats + 2, whole, seed)
        size = self.message_tokens
        messages = [[text[turn * size : (turn + 1) * size] for turn in range(self.turns)] for text in texts]
        return system[: self.system_tokens], messages, other[: self.system_tokens]


def _turn(turn: int, rows: Sequence[int], requests: Sequence[Request], generation: Generation) -> Iterator[Measurement]:
    """Values of one turn of each chat in a batch."""
    for row, request, times, found in zip(
        rows, requests, generation.token_times_s, generation.found_tokens, strict=True
    ):
        prompt = len(request.prompt)
        yield Measurement(TTFT_S, times[0], request=row, turn=turn)
        yield Measurement(TPOT_S, tpot_s(times), request=row, turn=turn)
        yield Measurement(CONTEXT_TOKENS, prompt, request=row, turn=turn)
        yield Measurement(FOUND_TOKENS, found, request=row, turn=turn)
        yield Measurement(READ_TOKENS, prompt - found, request=row, turn=turn)
        yield Measurement(PREFIX_HIT_RATE, found / prompt, "turn", request=row, turn=turn)


@dataclass
class Totals:
    """Of all turns of all chats: sums of tokens and seconds, peaks of bytes and blocks."""

    batches: int = 0
    prompt_tokens: int = 0
    found_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    readings: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, requests: Sequence[Request], generation: Generation) -> None:
        """Count one batch."""
        self.batches += 1
        self.prompt_tokens += sum(len(request.prompt) for request in requests)
        self.found_tokens += sum(generation.found_tokens)
        self.output_tokens += sum(map(len, generation.tokens))
        self.seconds += max(times[-1] for times in generation.token_times_s)
        for metric, phase, value in (*generation.memory, *generation.counted):
            self.readings.setdefault((metric, phase), []).append(value)

    def measurements(self) -> Iterator[Measurement]:
        """Preemptions are added up; of all else that the engine reads the most counts."""
        yield Measurement(PREFIX_HIT_RATE, self.found_tokens / self.prompt_tokens)
        yield Measurement(OUTPUT_TOKENS_PER_S, self.output_tokens / self.seconds)
        for (metric, phase), values in self.readings.items():
            # Blocks that nobody shares tell of their waste alone, so it is not known of all batches.
            if metric != PREFIX_HIT_RATE and (metric != KV_WASTE_BYTES or len(values) == self.batches):
                yield Measurement(metric, sum(values) if metric == PREEMPTIONS else max(values), phase)
