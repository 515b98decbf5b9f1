"""Names of models as file names: reversible, unable to leave their folder, never too long."""

from __future__ import annotations

import hashlib
from urllib.parse import quote, unquote


def encode_name(name: str) -> str:
    """`Qwen/Qwen3-8B` -> `Qwen%2FQwen3-8B`. Distinct names stay distinct; no slash, no leading dot or dash is left."""
    text = quote(name, safe="")
    return f"%{ord(text[0]):02X}{text[1:]}" if text[:1] in (".", "-") else text


def decode_name(text: str) -> str:
    """Inverse of `encode_name`."""
    return unquote(text)


def receipt_name(name: str) -> str:
    """File name of the receipt of a model or a data source that was fetched; distinct for distinct names."""
    return f"{bounded(encode_name(name), 180)}.json"


def bounded(text: str, limit: int) -> str:
    """`text` if it has at most `limit` characters, else its start and a hash of the whole."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 17]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
