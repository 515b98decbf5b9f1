"""Rows of one length over one transformers cache, and the press that acts on it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import kvpress
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from kvfrontier.engines._kept import codes, find
from kvfrontier.errors import Unsupported


class Lane:
    """A batch `[rows, tokens]` from its prefill on.

    kvpress's hooks belong to the model, and which keys it masks is noted in the model's modules: a lane puts both in
    place for each of its calls and takes them away again. told: also find out which tokens a press keeps.
    """

    def __init__(self, model: PreTrainedModel, press: Any, told: bool = True):
        self.model, self.press, self.told = model, press, told
        self.cache = DynamicCache()
        self.seen_tokens = self._next_position = 0
        modules = self._modules()
        self.masked: list[Any] = [None] * len(modules)  # by layer: indices (rows, KV heads, slots) that attention skips
        self._positions: list[Tensor | None] = [None] * len(modules)  # by layer [rows, KV heads, slots]; None: unknown
        if _decodes(press):
            _never_forgets(press)

    @torch.no_grad()
    def read(self, ids: Tensor, all_logits: bool = False) -> Tensor:
        """Append `ids` `[rows, new]`; logits `[rows, new or 1, vocab]`."""
        if ids.shape[1] > 1 and len(set(self._slots())) > 1:
            # transformers makes one causal mask for all layers, of the first one's length: one token needs none.
            parts = [self._call(ids[:, place : place + 1], False) for place in range(ids.shape[1])]
            return torch.cat(parts, 1) if all_logits else parts[-1]
        return self._call(ids, all_logits)

    def fork(self) -> Lane:
        """An independent copy."""
        other = copy.copy(self)
        other.cache, other.press = copy.deepcopy(self.cache), copy.deepcopy(self.press)
        other.masked, other._positions = list(self.masked), list(self._positions)
        return other

    def kept_counts(self) -> list[Tensor]:
        """By layer, tokens that attention still sees `[rows, KV heads]`."""
        found = []
        for layer, masked in zip(self.cache.layers, self.masked, strict=True):
            counts = torch.full(layer.keys.shape[:2], layer.keys.shape[2], device=layer.keys.device)
            if masked is not None:
                rows, heads, _ = masked
                gone = torch.ones(len(rows), dtype=counts.dtype, device=counts.device)
                counts.index_put_((rows.to(counts.device), heads.to(counts.device)), -gone, accumulate=True)
            found.append(counts)
        return found

    def kept_positions(self) -> list[Tensor]:
        """By layer `[rows, KV heads, slots]`, ascending, -1 last. Raises Unsupported where keys do not tell."""
        if any(positions is None for positions in self._positions):
            raise Unsupported("this press changes the keys it keeps, so nobody can tell which tokens they are of")
        found = []
        for positions, masked in zip(self._positions, self.masked, strict=True):
            last = torch.iinfo(torch.long).max
            ordered = positions.clone()
            if masked is not None:
                ordered[tuple(index.to(ordered.device) for index in masked)] = last
            ordered = ordered.sort(-1).values
            found.append(ordered.masked_fill(ordered == last, -1))
        return found

    def bytes_by_metric(self) -> dict[str, int]:
        """Exact tensor bytes. What is masked is held all the same."""
        tensors = [tensor for layer in self.cache.layers for tensor in (layer.keys, layer.values)]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        per_token = [layer.keys.shape[-1] * layer.keys.itemsize + layer.values.shape[-1] * layer.values.itemsize
                     for layer in self.cache.layers]  # fmt: skip
        masked = [0 if indices is None else len(indices[0]) for indices in self.masked]
        beside = _tensors([self.masked, vars(self.press) if self.press else {}])
        return {
            "kv_device_bytes": sum(tensor.nbytes for tensor in tensors),
            "kv_host_bytes": 0,
            "kv_aux_bytes": sum(tensor.nbytes for tensor in beside),
            "kv_reserved_bytes": sum(storages.values()),
            "kv_masked_bytes": sum(count * size for count, size in zip(masked, per_token, strict=True)),
        }

    def _call(self, ids: Tensor, all_logits: bool) -> Tensor:
        new = ids.shape[1]
        acts = self.press is not None and (not self.seen_tokens or _decodes(self.press))
        positions = torch.arange(self._next_position, self._next_position + new, device=ids.device)
        for module, masked in zip(self._modules(), self.masked, strict=True):
            module.masked_key_indices = masked
        with ExitStack() as stack:
            before: dict[int, Tensor] = {}
            if acts:
                stack.callback(_hooked(self._modules(), lambda module: self._note_before(module, before)))
                stack.enter_context(self.press(self.model))
                stack.callback(_hooked(self._modules(), lambda module: self._note_after(module, before)))
            out = self.model(
                input_ids=ids, past_key_values=self.cache, position_ids=positions.expand(len(ids), new), use_cache=True,
                logits_to_keep=0 if all_logits else 1,
            )  # fmt: skip
        for index, module in enumerate(self._modules()):
            self.masked[index], module.masked_key_indices = module.masked_key_indices, None
            if not acts:
                self._positions[index] = self._with_new(index)
        self.seen_tokens += new
        self._next_position += new
        if acts:
            self._after_the_press()
        return out.logits

    def _after_the_press(self) -> None:
        length = self.cache.get_seq_length()
        # These give kept keys new positions 0, 1, 2, ...: what comes next follows them.
        if getattr(self.press, "rerotate_keys", False) or length > self.seen_tokens:
            self._next_position = length
        if not _decodes(self.press):
            self.press = None  # its work is done

    def _note_before(self, module: nn.Module, before: dict[int, Tensor]) -> None:
        if self.told:
            before[module.layer_idx] = codes(self.cache.layers[module.layer_idx].keys)

    def _note_after(self, module: nn.Module, before: dict[int, Tensor]) -> None:
        if not self.told:
            return
        index = module.layer_idx
        keys, known = self.cache.layers[index].keys, self._with_new(index, before[index].shape)
        if keys.shape[2] != before[index].shape[2] and known is not None:
            places = find(codes(keys), before[index])
            known = None if places is None else known.gather(-1, places)
        self._positions[index] = known

    def _with_new(self, index: int, shape: tuple[int, ...] | None = None) -> Tensor | None:
        """Positions of a layer's slots once those of the tokens just read are added."""
        keys = self.cache.layers[index].keys
        rows, heads, slots = shape or keys.shape[:3]
        known = self._positions[index]
        if known is None and (self.seen_tokens or not self.told):
            return None
        new = slots - (0 if known is None else known.shape[2])
        added = torch.arange(self.seen_tokens, self.seen_tokens + new, device=keys.device).expand(rows, heads, new)
        return added if known is None else torch.cat((known, added), -1)

    def _modules(self) -> list[nn.Module]:
        return [layer.self_attn for layer in self.model.model.layers]

    def _slots(self) -> list[int]:
        return [layer.keys.shape[2] for layer in self.cache.layers]


def _decodes(press: Any) -> bool:
    """Whether a press acts after the prefill, too, as kvpress's own pipeline decides it."""
    return isinstance(press, kvpress.DecodingPress | kvpress.PrefillDecodingPress) or getattr(press, "decoding", False)


def _never_forgets(press: Any) -> None:
    """kvpress drops what a press has gathered where its `with` ends; here each step has one of its own."""
    for part in (press, getattr(press, "decoding_press", None)):
        if hasattr(part, "reset"):
            part.reset = _nothing


def _nothing() -> None:
    pass


def _hooked(modules: list[nn.Module], act: Any) -> Any:
    """Call `act(module)` after each module's forward pass; returns what ends that."""
    hooks = [module.register_forward_hook(lambda module, *_: act(module)) for module in modules]

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return end


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors in nested lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if hasattr(value, "values") else value:
            yield from _tensors(item)
