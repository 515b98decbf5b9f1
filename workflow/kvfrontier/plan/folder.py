"""A model in a local folder: its shape from config.json, its identity from the bytes of its files. Loads no weights."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvfrontier.plan.cell import content_hash
from kvfrontier.plan.document import show
from kvfrontier.plan.model import ModelSpec
from kvfrontier.plan.project import kvfrontier_cache
from kvfrontier.plan.weights import require_weights

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
)
SHAPED = "a model whose config.json says its shape"
SHA256_DIGITS = 64
MOST = 10**9
"""Of layers, heads, sizes and positions: above, the number is a slip, and the sums over it are none."""


def folder_spec(name: str, folder: Path) -> ModelSpec:
    """Shape out of `folder`/config.json. A config without `head_dim` means hidden / q_heads.

    Raises ValueError(expected, hint) for a folder that is missing, holds no safetensors or no usable config.
    """
    require_weights(folder)
    config = _read_config(folder)
    for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
        if config.get(key) is None:
            raise ValueError(SHAPED, f"config.json has no `{key}`.")
    hidden, q_heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    kv_heads = _count(config, "num_key_value_heads", q_heads)
    if config.get("head_dim") is None and hidden % q_heads:
        raise ValueError(
            SHAPED, f"config.json has no `head_dim`, and hidden_size {hidden} is no multiple of {q_heads} heads."
        )
    if q_heads % kv_heads:
        raise ValueError(SHAPED, f"num_attention_heads {q_heads} is no multiple of num_key_value_heads {kv_heads}.")
    return ModelSpec(
        name=name,
        layers=_count(config, "num_hidden_layers"),
        q_heads=q_heads,
        kv_heads=kv_heads,
        **_head_dims(config, hidden // q_heads),
        hidden=hidden,
        vocab=_count(config, "vocab_size"),
        max_positions=_count(config, "max_position_embeddings"),
        windows=_windows(config),
    )


def _head_dims(config: dict[str, Any], default: int) -> dict[str, int | None]:
    """Of keys and values; multi-head latent attention reaches a cache expanded, a key in two parts."""
    if config.get("kv_lora_rank") is None:
        return {"head_dim": _count(config, "head_dim", default)}
    parts = [_count(config, f"qk_{part}_head_dim", 0) for part in ("nope", "rope")]
    value = _count(config, "v_head_dim")
    return {"head_dim": sum(parts) or default, "value_head_dim": None if value == sum(parts) else value}


def _windows(config: dict[str, Any]) -> tuple[int | None, ...]:
    """Windows of layers, where config.json spells both out; the loaded model tells the engine the rest."""
    kinds, window = config.get("layer_types"), _count(config, "sliding_window")
    if not isinstance(kinds, list) or "sliding_attention" not in kinds or window is None:
        return ()
    if len(kinds) != _count(config, "num_hidden_layers"):
        raise ValueError(SHAPED, f"config.json has {len(kinds)} `layer_types`, which must be one a layer.")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _count(config: dict[str, Any], key: str, default: int | None = None) -> int | None:
    """A positive whole number out of config.json; `default` where the key is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        must = f"which must be a whole number from 1 to {MOST:,}"
        raise ValueError(SHAPED, f"config.json says {show(value)} for `{key}`, {must}.")
    return value


def folder_identity(folder: Path, remote_code: bool = False) -> str:
    """SHA-256 over names and bytes of config, weights and tokenizer (and the model's own code where it may run).

    Each file's hash is kept in the user cache under its path and `_state`: weights are read once.
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
    """Names and states of all files of a folder: equal signatures mean an equal identity."""
    if not folder.is_dir():
        return "missing"
    return content_hash([(path.name, *_state(path)) for path in sorted(folder.iterdir()) if path.is_file()])


def _state(path: Path) -> tuple[int, int, int]:
    """Size and times of a file. Its ctime, which nobody can set, tells of new bytes whose mtime was put back."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    expected = "a folder with a readable config.json"
    if not path.is_file():
        raise ValueError(expected, f"{folder} holds no config.json.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(expected, f"{path}: {error}.") from None
    if not isinstance(config, dict):
        raise ValueError(expected, f"{path} holds no JSON object.")
    text = config.get("text_config")  # of models that read more than text
    return text if isinstance(text, dict) else config


def _file_sha256(path: Path) -> str:
    key = content_hash([str(path.resolve()), *_state(path)])
    memory = kvfrontier_cache() / "identity" / key
    with suppress(OSError, ValueError):
        if len(known := memory.read_text()) == SHA256_DIGITS:  # a crash may have left it empty
            return known
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
