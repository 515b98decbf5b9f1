"""A model's folder is looked at before any library opens it: nothing in it may choose what is loaded or run.

transformers follows what config.json and an index say: to another file of weights (also a pickle), or to attention
code on the hub. `trust_remote_code` in config/models.yaml opens the door to the model's own Python files alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.plan.weights import require_weights

TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "*.tiktoken",
    "tekken.json",
)
"""One of these a tokenizer is made of; tokenizer_config.json alone is none."""
LONGEST_REASON = 300


def vet(folder: Path, name: str) -> None:
    """Raise Unavailable, with what to do, for a folder that holds no whole and harmless model and its tokenizer."""
    try:
        require_weights(folder)
    except ValueError as error:
        expected, hint = error.args
        raise Unavailable(f"model '{name}': expected {expected}. {hint}") from None
    if not any(path.is_file() for pattern in TOKENIZERS for path in folder.glob(pattern)):
        raise Unavailable(
            f"model '{name}': {folder} holds no tokenizer ({', '.join(TOKENIZERS[:4])}). "
            "Save it beside the weights: tokenizer.save_pretrained(folder)"
        )
    if (folder / "adapter_config.json").exists():
        raise Unavailable(
            f"model '{name}': {folder} holds an adapter (adapter_config.json). Merge it into the weights: "
            "merge_and_unload() of peft, then save_pretrained(folder)"
        )
    config = _read(folder / "config.json", name)
    for key, value in _settings(config):
        if key == "transformers_weights" and value:
            what = f"`{key}: {value!r}`, another file of weights"
        elif key.endswith("implementation") and isinstance(value, str) and not value.isidentifier():
            what = f"`{key}: {value!r}`, code from the hub"
        else:
            continue
        raise Unavailable(f"model '{name}': {folder}/config.json asks for {what}. Remove that line")


class Loading:
    """Say in one line what a library could not make of a model. Nothing is swallowed, the error is put in other words.

    Their errors are of any class (`Exception` itself out of Rust, and what Rust calls a panic). Memory that runs out
    stays what it is: the cell is then `oom`.
    """

    def __init__(self, what: str):
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        is_theirs = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if is_theirs and not isinstance(error, KVFrontierError | MemoryError) and "memory" not in str(error).lower():
            reason = " ".join(str(error).split())[:LONGEST_REASON]
            raise KVFrontierError(f"{self._what} cannot be loaded: {type(error).__name__}: {reason}") from error


def require_all_weights(name: str, found: Mapping[str, Any]) -> None:
    """Raise KVFrontierError where config.json and weights disagree: transformers would measure random numbers."""
    if mismatched := sorted(found.get("mismatched_keys") or ()):
        tensor, held, asked = mismatched[0]
        raise KVFrontierError(
            f"model '{name}': config.json is of another model than the weights: {tensor} is {_shape(held)}, and "
            f"config.json makes it {_shape(asked)} ({len(mismatched)} such). Look at head_dim, hidden_size, vocab_size "
            "and the numbers of heads"
        )
    if missing := sorted(found.get("missing_keys") or ()):
        raise KVFrontierError(
            f"model '{name}': the weights lack {len(missing)} tensors that config.json asks for ({missing[0]}, ...). "
            "Look at num_hidden_layers, and whether all files are there"
        )


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _read(path: Path, name: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Unavailable(f"model '{name}': {path} cannot be read: {error}") from None


def _settings(node: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth (JSON that could be read is not too deep to be walked)."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield str(key), value
        yield from _settings(value)
