"""A model in a local folder: its shape from config.json, its identity from the bytes of its files. Loads no weights."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from kvfrontier.plan.cell import content_hash
from kvfrontier.plan.model import ModelSpec
from kvfrontier.plan.project import kvfrontier_cache

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
)


def folder_spec(name: str, folder: Path) -> ModelSpec:
    """Shape out of `folder`/config.json. A config without `head_dim` means hidden / q_heads.

    Raises ValueError(expected, hint) for a folder that is missing, holds no safetensors or no usable config.
    """
    _require_weights(folder)
    config = _read_config(folder)
    layers, q_heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    for key, value in (("num_hidden_layers", layers), ("num_attention_heads", q_heads), ("hidden_size", hidden)):
        if not isinstance(value, int) or value < 1:
            raise ValueError("a model whose config.json says its shape", f"config.json has no usable `{key}`.")
    head_dim = config.get("head_dim")
    if head_dim is None:
        if hidden % q_heads:
            hint = f"config.json has no `head_dim`, and hidden_size {hidden} is no multiple of {q_heads} heads."
            raise ValueError("a model whose config.json says its shape", hint)
        head_dim = hidden // q_heads
    return ModelSpec(
        name=name,
        layers=layers,
        q_heads=q_heads,
        kv_heads=config.get("num_key_value_heads") or q_heads,
        head_dim=head_dim,
        hidden=hidden,
        vocab=config.get("vocab_size"),
        max_positions=config.get("max_position_embeddings"),
    )


def folder_identity(folder: Path, remote_code: bool = False) -> str:
    """SHA-256 over names and bytes of config, weights and tokenizer (and the model's own code where it may run).

    Each file's hash is kept in the user cache under its path, size and time of change: weights are read once.
    """
    hashes = {path.relative_to(folder).as_posix(): _file_sha256(path) for path in identity_files(folder, remote_code)}
    return content_hash(hashes, 64)


def identity_files(folder: Path, remote_code: bool = False) -> list[Path]:
    """The files that decide what the model computes, sorted."""
    patterns = [
        "config.json",
        "generation_config.json",
        "*.safetensors",
        *TOKENIZER_FILES,
        *(["*.py"] if remote_code else []),
    ]
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def stat_signature(folder: Path) -> str:
    """Names, sizes and times of all files of a folder: equal signatures mean an equal identity."""
    if not folder.is_dir():
        return "missing"
    stats = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.iterdir()) if path.is_file()
    ]
    return content_hash(stats)


def _require_weights(folder: Path) -> None:
    expected = "a folder with config.json and *.safetensors"
    if not folder.is_dir():
        raise ValueError(expected, f"There is no folder {folder}.")
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        if pickles:
            hint = (
                f"It holds pickled weights only ({', '.join(pickles[:3])}): loading those can run code. Convert them."
            )
            raise ValueError(expected, hint)
        raise ValueError(expected, f"{folder} holds no *.safetensors.")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    expected = "a folder with a readable config.json"
    if not path.is_file():
        raise ValueError(expected, f"{folder} holds no config.json.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(expected, f"{path}: {error}.") from None
    if not isinstance(config, dict):
        raise ValueError(expected, f"{path} holds no JSON object.")
    text = config.get("text_config")  # of models that read more than text
    return text if isinstance(text, dict) else config


def _file_sha256(path: Path) -> str:
    stat = path.stat()
    key = content_hash([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
    memory = kvfrontier_cache() / "identity" / key
    if memory.is_file():
        return memory.read_text()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        partial = memory.with_name(f"{key}.{os.getpid()}")
        partial.write_text(digest)
        partial.replace(memory)
    except OSError:
        return digest  # a cache that cannot be written costs time, not the plan
    return digest
