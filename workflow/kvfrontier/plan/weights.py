"""The weights in a model's folder: there, in safetensors, and whole. Reads the files' headers, never the tensors.

No pickle is ever opened: what is called *.safetensors must be that, and an index may name nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
EXPECTED = "a folder with config.json and *.safetensors"


def require_weights(folder: Path) -> None:
    """Raises ValueError(expected, hint) for a missing folder, and for weights that are missing, pickled or cut off."""
    if not folder.is_dir():
        raise ValueError(EXPECTED, f"There is no folder {folder}.")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        if pickles:
            hint = (
                f"It holds pickled weights only ({', '.join(pickles[:3])}): loading those can run code. Convert them "
                "once where you trust them: model.save_pretrained(folder) writes safetensors."
            )
            raise ValueError(EXPECTED, hint)
        raise ValueError(EXPECTED, f"{folder} holds no *.safetensors.")
    if broken := [path.name for path in files if not _is_whole(path)]:
        hint = f"{', '.join(broken[:3])}: no whole safetensors file (a download that was cut off, a Git LFS pointer)."
        raise ValueError("whole *.safetensors", hint)
    names = {name for index in folder.glob("*.safetensors.index.json") for name in _indexed(index)}
    if foreign := sorted(name for name in names if Path(name).name != name or not name.endswith(".safetensors")):
        hint = f"Its index names {', '.join(map(repr, foreign[:3]))}: that is read by no one here."
        raise ValueError("an index that names *.safetensors beside it", hint)
    if missing := sorted(name for name in names if not (folder / name).is_file()):
        raise ValueError("all the *.safetensors its index names", f"{', '.join(missing[:3])} is not there.")


def _is_whole(path: Path) -> bool:
    """Whether a file is as long as its header says its tensors are, and the header is one."""
    if not path.is_file():
        return False
    try:
        with safe_open(path, framework="np"):
            return True
    except (SafetensorError, OSError):
        return False


def _indexed(path: Path) -> set[str]:
    """File names in an index such as model.safetensors.index.json; raises ValueError where it is none."""
    try:
        names = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        names = {None}
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"a readable {path.name}", "It maps the name of each tensor to the name of a file.")
    return names
