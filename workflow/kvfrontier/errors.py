"""The errors a user can meet, and how they are worded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from difflib import get_close_matches

_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]*://?)[^\s/@]+@", re.I)  # one slash: a URL that was taken for a path
_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|not enough memory|_STATUS_ALLOC_FAILED|bad_alloc", re.I
)
_PARAMETER = re.compile(r"([?&][^=&\s]*(?:token|secret|password|passwd|api_?key|signature)[^=&\s]*=)[^&\s'\"]+", re.I)

LONGEST_PART = 1000
"""Characters of each part of a problem at most: a name in a file may be endless."""


class KVFrontierError(Exception):
    """Base of every error whose message is meant for the user: the CLI prints it without a traceback."""

    def __str__(self) -> str:
        return without_logins(printable(super().__str__()))  # it may quote names, files and addresses of others


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a user's file: where it is, what stands there, what should."""

    file: str
    key: str
    got: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        file, key, got, expected, hint = (_one_line(part) for part in astuple(self))
        return f"{file}: {key}: got {got}; expected {expected}.{f' {hint}' if hint else ''}"


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


def is_out_of_memory(error: Exception) -> bool:
    """Whether the exception, of whatever library, says that memory did not suffice."""
    # torch's own class is known by its name: nothing here may import torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and bool(_OUT_OF_MEMORY.search(str(error)))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` for the nearest known spelling, or an empty string."""
    spellings = {text.lower(): text for text in known}  # capitals are no reason to miss `h2o` for `H2O`
    nearest = get_close_matches(str(name).lower(), spellings, n=1, cutoff=0.5)
    return f"Did you mean '{spellings[nearest[0]]}'?" if nearest else ""


def printable(text: str) -> str:
    """`text` as a terminal may show it: escape sequences and what cannot be encoded as `\\x1b`; line breaks stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def without_logins(text: str) -> str:
    """`text` with `***` for user names, passwords and tokens inside its URLs."""
    return _PARAMETER.sub(r"\1***", _LOGIN.sub(r"\1***@", text)) if ":/" in text else text


def _one_line(part: str) -> str:
    text = printable(part).replace("\n", "\\n")
    return text if len(text) <= LONGEST_PART else f"{text[: LONGEST_PART - 3]}..."


def a(noun: str) -> str:
    """`a model`, `an engine`."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"
