"""Take secrets out of text that is kept: values of environment variables that are named like one, logins in URLs."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from functools import cache

from kvfrontier.errors import without_logins

MASK = "***"
SHORTEST_SECRET = 8  # a shorter value is a word that may stand anywhere
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTH", re.I)


def secrets() -> list[str]:
    """What the environment holds under names of secrets now; asked for once for many texts, as reading it is slow."""
    values = [os.environ[name] for name in os.environ if _is_secret(name)]
    return [value for value in values if len(value) >= SHORTEST_SECRET]


@cache
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def redact(text: str, known: Sequence[str] | None = None) -> str:
    """`text` without secrets (`known`: those of `secrets()`): exception messages may quote a URL or a header."""
    for value in secrets() if known is None else known:
        text = text.replace(value, MASK)
    return without_logins(text)


class RedactingFormatter(logging.Formatter):
    """Formats as usual, tracebacks included, and takes secrets out."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
