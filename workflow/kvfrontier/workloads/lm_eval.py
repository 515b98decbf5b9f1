"""`lm_eval`: tasks of the LM Evaluation Harness, answered under a compressed cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from kvfrontier.errors import Unsupported, did_you_mean
from kvfrontier.metrics import BUDGET_BITES, Measurement
from kvfrontier.parameters import Count, PositiveInt
from kvfrontier.sources.tasks import DATA, OFFLINE
from kvfrontier.strategies import STRATEGIES
from kvfrontier.workloads import workload
from kvfrontier.workloads._account import KVAccount
from kvfrontier.workloads._choice import Feed
from kvfrontier.workloads.base import Workload

if TYPE_CHECKING:
    from kvfrontier.engines.base import Session
    from kvfrontier.strategies.base import Strategy
    from kvfrontier.workloads._lm_eval_answers import Evaluation
    from kvfrontier.workloads._lm_eval_tasks import Loaded

ENDLESS = 10**6  # tokens of a context in which any budget bites


@workload("lm_eval")
class LmEval(Workload):
    """Ask `documents` documents of an lm-eval task, as lm-eval asks them (EleutherAI/lm-evaluation-harness 0.4.13).

    Prompts, few-shot examples, scores and their aggregation are lm-eval's. Its model is the session: a context is read
    up to its last `held_back_tokens` tokens, the cache is compressed as the strategy says, and what was held back is
    fed with each answer, at its original positions, to a copy of it. A document is read once, however many answers it
    has (where each answer has a context of its own, as in WinoGrande, each context is). With the whole budget the
    log-likelihoods are those of lm-eval's own model for transformers.

    The question is seen before the cache is compressed, but for the tokens held back: `held_back_from` holds back all
    from a text on ("Question:" in BoolQ: the passage is compressed before the question is known).

    `protocol: one_pass` is what papers report whose code masks attention in one pass over context and answer: nothing
    is compressed, and strategies without such a mask are unsupported.

    Documents (`request` is the number in the data set) and few-shot examples are a seeded random choice, the same for
    every strategy, and no example is ever asked. Every document is also asked of the full cache, once a session:
    `full_agreement` and `margin_change` are paired. Contexts can be short: `budget_bites` says of how many documents
    the strategy took anything at all, `effective_budget` what they still held of their context. Bytes are of one
    context.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"steps", "logits", "kept_positions", "text"})
    references: ClassVar[tuple[str, ...]] = ("full",)
    packages: ClassVar[tuple[str, ...]] = ("lm_eval",)

    task: Annotated[str, Field(description="A task by lm-eval's name for it; required")] = ""
    documents: Annotated[PositiveInt, Field(description="Documents asked, at most")] = 50
    num_fewshot: Annotated[
        Count | None, Field(description="Examples before the question; null: the task's own default")
    ] = None
    documents_from: Annotated[
        Literal["wheel", "hub"],
        Field(
            description="The data wheel (the reasoning tasks, MMLU, LAMBADA, GSM8K), or the hub (any task; a network)"
        ),
    ] = "wheel"
    protocol: Annotated[
        Literal["compressed", "one_pass"],
        Field(description="Under the compressed cache, or masked in one pass over context and answer"),
    ] = "compressed"
    held_back_tokens: Annotated[
        PositiveInt, Field(description="q: last tokens of a context that are read after the compression")
    ] = 1
    held_back_from: Annotated[
        str, Field(description="Hold back all from the last place of this text on; empty: held_back_tokens alone")
    ] = ""
    feed: Feed = "block"
    side_by_side: Annotated[PositiveInt, Field(description="Contexts in one forward pass")] = 8

    @model_validator(mode="after")
    def _check(self) -> LmEval:
        if not self.task:
            raise ValueError(f"a task: {', '.join(name for name in OFFLINE if '_' not in name)}, ...")
        if self.documents_from == "wheel" and self.task not in OFFLINE:
            raise ValueError(
                f"a task that the wheel has; '{self.task}' it has not. {did_you_mean(self.task, OFFLINE)} "
                "`documents_from: hub` asks for any that lm-eval knows"
            )
        return self

    def data(self) -> tuple[str, ...]:
        return (DATA,) if self.documents_from == "wheel" else ()

    @property
    def gives(self) -> frozenset[str]:
        """`whole_sequence` under its own protocol alone: it is not the policy that is measured then."""
        return frozenset({"whole_sequence"} if self.protocol == "one_pass" else ())

    def check_strategy(self, strategy: Strategy) -> None:
        """Raises Unsupported for strategies that the protocol has no form of."""
        if self.protocol == "compressed" and "whole_sequence" in strategy.requires():
            raise Unsupported(f"'{strategy.name}' masks whole sequences: lm_eval asks it with `protocol: one_pass`")
        if self.protocol == "one_pass" and strategy.acts and "whole_sequence" not in strategy.requires():
            raise Unsupported(
                f"'{strategy.name}' compresses what was read, it has no mask over a whole sequence: "
                "`protocol: compressed` asks it"
            )
        super().check_strategy(strategy)

    def run(self, session: Session, strategy: Strategy, seed: int) -> Iterator[Measurement]:
        from kvfrontier.workloads._lm_eval_answers import measurements

        full = STRATEGIES.get("full")()
        account = KVAccount(session)
        own = self._evaluated(session, strategy, seed, account)
        key = ("lm_eval with the full cache", self, seed)
        if strategy == full:
            session.memo[key] = own
        elif key not in session.memo:
            session.memo[key] = self._evaluated(session, full, seed, KVAccount(session))
        yield from measurements(own, session.memo[key])
        if strategy.kept_tokens(ENDLESS) < ENDLESS:
            for answer in own.answers:
                yield Measurement(
                    BUDGET_BITES, float(any(read.lost > 0 for read in answer.reads)), request=answer.number
                )
        if self.protocol == "compressed":
            yield from account.measurements()

    def _evaluated(self, session: Session, strategy: Strategy, seed: int, account: KVAccount) -> Evaluation:
        from kvfrontier.workloads._lm_eval_answers import evaluated
        from kvfrontier.workloads._lm_eval_model import Protocol, SessionLM

        at_once = self.protocol == "one_pass"
        protocol = Protocol(at_once, self.held_back_tokens, self.held_back_from, self.feed, self.side_by_side)
        return evaluated(SessionLM(session, strategy, protocol, account), self._loaded(session, seed), seed)

    def _loaded(self, session: Session, seed: int) -> Loaded:
        """The task with its documents, once a session."""
        from kvfrontier.workloads._lm_eval_tasks import load

        asked = (self.task, self.documents_from == "hub", self.documents, self.num_fewshot, seed)
        key = ("lm_eval task", asked)
        if key not in session.memo:
            session.memo[key] = load(*asked)
        return session.memo[key]
