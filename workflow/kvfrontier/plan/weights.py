"""The weights in a model's folder: there, in safetensors, and whole. Reads the files' headers, never the tensors."""

from __future__ import annotations

import json
from pathlib import Path

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
EXPECTED = "a folder with config.json and *.safetensors"
HEADER_LENGTH_BYTES = 8


def require_weights(folder: Path) -> None:
    """Raises ValueError(expected, hint) for a missing folder, and for weights that are missing, pickled or cut off."""
    if not folder.is_dir():
        raise ValueError(EXPECTED, f"There is no folder {folder}.")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        if pickles:
            hint = (
                f"It holds pickled weights only ({', '.join(pickles[:3])}): loading those can run code. Convert them."
            )
            raise ValueError(EXPECTED, hint)
        raise ValueError(EXPECTED, f"{folder} holds no *.safetensors.")
    if broken := [path.name for path in files if not _is_whole(path)]:
        hint = f"{', '.join(broken[:3])}: no whole safetensors file (a download that was cut off, a Git LFS pointer)."
        raise ValueError("whole *.safetensors", hint)
    if missing := sorted(name for name in _indexed(folder) if not (folder / name).is_file()):
        raise ValueError("all the *.safetensors its index names", f"{', '.join(missing[:3])} is not there.")


def _is_whole(path: Path) -> bool:
    """Whether a file is as long as its header says its tensors are."""
    if not path.is_file():
        return False
    size = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
        if not 0 < header_bytes <= size - HEADER_LENGTH_BYTES:
            return False
        try:
            header = json.loads(file.read(header_bytes))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return False
    return size == HEADER_LENGTH_BYTES + header_bytes + max(ends, default=0)


def _indexed(folder: Path) -> set[str]:
    """File names in model.safetensors.index.json; none where there is no readable index."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return set(index["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()
