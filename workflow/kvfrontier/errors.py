"""The errors a user can meet, and how they are worded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


class KVFrontierError(Exception):
    """Base of every error whose message is meant for the user: the CLI prints it without a traceback."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a user's file: where it is, what stands there, what should."""

    file: str
    key: str
    got: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" {self.hint}" if self.hint else ""
        return f"{self.file}: {self.key}: got {self.got}; expected {self.expected}.{hint}"


class ConfigError(KVFrontierError):
    """The user's configuration is wrong. Carries every problem found, not only the first."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Unsupported(KVFrontierError):
    """A legal but impossible combination, known when the plan is made. Becomes a row with `status = unsupported`."""


class DeviceMismatch(KVFrontierError):
    """The worker's device is not the one the campaign declares. Becomes an error row, never a number."""


class Unavailable(KVFrontierError):
    """Something outside (network, file, package) is missing; the message says what to do next."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` for the nearest known spelling, or an empty string."""
    spellings = {text.lower(): text for text in known}  # capitals are no reason to miss `h2o` for `H2O`
    nearest = get_close_matches(str(name).lower(), spellings, n=1, cutoff=0.5)
    return f"Did you mean '{spellings[nearest[0]]}'?" if nearest else ""


def a(noun: str) -> str:
    """`a model`, `an engine`."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"
