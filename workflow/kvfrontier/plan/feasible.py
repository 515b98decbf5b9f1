"""Which cells cannot run, known before anything starts: each becomes a row `unsupported`, and the plan says why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from kvfrontier.errors import ConfigError, KVFrontierError, Problem, Unsupported
from kvfrontier.plan.campaign import Campaign
from kvfrontier.plan.device import Device
from kvfrontier.plan.document import Text, show
from kvfrontier.plan.environment import NOT_INSTALLED, other, qualified
from kvfrontier.plan.fingerprint import package_version
from kvfrontier.plan.options import Option
from kvfrontier.plan.planned import PlannedCell
from kvfrontier.registry import ENGINES

NOTED = 0.1
"""An effective budget so far from the one that was asked for, relative to it, is noted."""


@dataclass
class Finding:
    """One reason, the option it is due to, and how many cells it rules out."""

    reason: str
    model: str
    option: Option
    cells: int = 0


class Feasibility:
    """Asks engine and workload about every combination of plugins once, and remembers the answers."""

    def __init__(self, campaign: Campaign):
        self._campaign = campaign
        self._answers: dict[tuple, str] = {}
        self._findings: dict[tuple[str, int], Finding] = {}
        self._kept: dict[tuple[int, int], str] = {}
        self._one_chunk: dict[tuple[int, int], str] = {}

    def judge(self, model: str, engine: Option, device: Device, workload: Option, strategy: Option) -> str:
        """Why this cell cannot run, or an empty string. Counts the cells of each reason."""
        spec = self._campaign.models[model].spec
        questions: tuple[tuple[Option, tuple, Callable[[], None]], ...] = (
            (workload, (id(workload), model), lambda: workload.plugin.check(spec)),
            (workload, (id(workload), id(engine)), lambda: _check_needs(engine.plugin, workload.plugin)),
            (strategy, ("told", id(workload), id(strategy)), lambda: workload.plugin.check_strategy(strategy.plugin)),
            (strategy, (id(strategy), model), lambda: strategy.plugin.check(spec)),
            (strategy, (id(engine), id(strategy), model), lambda: engine.plugin.check(strategy.plugin, spec)),
            (engine, (id(engine), device.name), lambda: engine.plugin.check_device(device)),
            (engine, (id(engine), device.name, "environment"), lambda: _check_environment(engine.plugin, device)),
            (
                workload,
                ("packages", id(workload), id(engine), device.name),
                lambda: _check_packages(engine.plugin, workload.plugin, device),
            ),
        )
        for option, key, question in questions:
            if key not in self._answers:
                self._answers[key] = _answer(question)
            if reason := self._answers[key]:
                finding = self._findings.setdefault((reason, id(option)), Finding(reason, model, option))
                finding.cells += 1
                return reason
        self._note_budget(workload, strategy)
        self._note_chunk(workload, strategy)
        return ""

    def notes(self) -> list[str]:
        """One line a reason, with the key and value it comes from; and budgets that round to something else."""
        lines = []
        for finding in self._findings.values():
            problem = self._problem(finding)
            rows = f"{finding.cells} {'cell' if finding.cells == 1 else 'cells'} will be rows `unsupported`"
            lines.append(f"{problem.file}: {problem.key} ({problem.got}): {finding.reason}; {rows}")
        for examples in (list(self._kept.values()), list(self._one_chunk.values())):
            more = f" (and {len(examples) - 1} more such combinations)" if len(examples) > 1 else ""
            lines += [f"{example}{more}" for example in examples[:1]]
        return lines

    def require_runnable(self, cells: Iterable[PlannedCell]) -> None:
        """Raise ConfigError with every reason when no cell can run."""
        if all(cell.status for cell in cells):
            raise ConfigError([self._problem(finding) for finding in self._findings.values()])

    def _problem(self, finding: Finding) -> Problem:
        """A finding in terms of the campaign file: the context if that is too long, else the whole entry."""
        document, option = self._campaign.document, finding.option
        limit = self._campaign.models[finding.model].spec.max_positions
        context = option.parameters.get("context_tokens")
        if limit and isinstance(context, int) and context + (option.parameters.get("output_tokens") or 0) > limit:
            key = option.keys.get("context_tokens", option.keys[""])
            expected = f"context and output of at most {limit} tokens, the limit of model {finding.model}"
            return document.problem(key, context, expected, f"{finding.reason}.")
        return document.problem(option.keys[""], Text(option.label), "a combination that can run", f"{finding.reason}.")

    def _note_budget(self, workload: Option, strategy: Option) -> None:
        """A share of a short context is few tokens; say so where sinks, windows or rounding make it another share."""
        key = (id(workload), id(strategy))
        budget, context = (
            option.parameters.get(name) for option, name in ((strategy, "budget"), (workload, "context_tokens"))
        )
        if key in self._answers or budget in (None, 1.0) or not isinstance(context, int):
            return
        self._answers[key] = ""
        kept = strategy.plugin.most_attended(context)
        asked = budget if isinstance(budget, float) else budget / context
        if abs(kept / context - asked) > NOTED * asked:
            instead = f"{kept / context:.3g} instead of {show(budget)}{'' if isinstance(budget, float) else ' tokens'}"
            self._kept[key] = (
                f"{strategy.label} on {context} tokens keeps {kept} a KV head: an effective budget of {instead}"
            )

    def _note_chunk(self, workload: Option, strategy: Option) -> None:
        """A strategy that acts after each of its chunks is another one, without them, in a context of one; say so."""
        chunk, context = strategy.plugin.chunk_tokens, workload.parameters.get("context_tokens")
        if chunk is not None and isinstance(context, int) and context <= chunk:
            self._one_chunk.setdefault(
                (id(workload), id(strategy)),
                f"{strategy.label} reads {context} tokens in one chunk of {chunk}: its chunks make no difference",
            )


def _check_needs(engine, workload) -> None:
    missing = sorted(workload.needs - engine.offers)
    if missing:
        said = f"engine {engine.name} does not offer {', '.join(missing)}, which workload {workload.name} needs"
        able = " or ".join(_engines_offering(workload.needs))
        raise Unsupported(f"{said}; engine {able} does" if able else said)


def _engines_offering(needs: Iterable[str]) -> Iterator[str]:
    """Names of the engines that by themselves offer all of it."""
    for name in ENGINES.names():
        with suppress(ValidationError, KVFrontierError):  # one that needs settings; one that cannot be read
            if frozenset(needs) <= ENGINES.get(name)().offers:
                yield name


def _check_environment(engine, device: Device) -> None:
    if environment := other(engine.environment_on(device)):
        environment.require()


def _check_packages(engine, workload, device: Device) -> None:
    """An engine's environment has what the engine needs, and may lack what a workload does."""
    environment = engine.environment_on(device)
    for package in workload.packages:
        if package_version(qualified(package, environment)) == NOT_INSTALLED:
            raise Unsupported(
                f"workload {workload.name} needs {package}, which the environment '{environment}' of engine "
                f"{engine.name} has not"
            )


def _answer(question: Callable[[], None]) -> str:
    try:
        question()
    except Unsupported as impossible:
        return str(impossible) or type(impossible).__name__
    return ""
