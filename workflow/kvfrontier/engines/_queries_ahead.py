"""Queries that a later layer's projection makes of an earlier layer's attention input, read by hooks on the model."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvfrontier.errors import Unsupported

_PROBE_POSITION = 5  # any position that rotates


class QueriesAhead:
    """Within its `with`, hooks note each attention module's input: a forward call of one token a row belongs there."""

    def __init__(self, model: PreTrainedModel, layers: int):
        """Raises Unsupported where a layer's queries are not those of a `q_proj`, its norm and rotary embeddings."""
        self._kind = type(model).__name__
        modules = {
            module.layer_idx: module
            for module in model.modules()
            if isinstance(getattr(module, "q_proj", None), nn.Module) and hasattr(module, "layer_idx")
        }
        if sorted(modules) != list(range(layers)):
            raise Unsupported(
                f"queries of a later layer need a q_proj in each layer; {self._kind} has other projections"
            )
        self._modules = [modules[layer_idx] for layer_idx in range(layers)]
        self._input: tuple[Tensor, Any] | None = None  # hidden states [batch, 1, hidden], (cos, sin)
        self._handles: list[Any] = []
        with self:
            self._verify(model)

    def __enter__(self) -> None:
        self._handles = [module.register_forward_pre_hook(self._note, with_kwargs=True) for module in self._modules]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._input = [], None

    def __call__(self, layer_idx: int, ahead: int) -> Tensor:
        """Queries `[batch, q_heads, 1, head_dim]` of layer `layer_idx + ahead` for the input of layer `layer_idx`.

        To be called while that layer's attention runs, at the position of its token.
        """
        module = self._modules[layer_idx + ahead]
        hidden, rotary = self._input
        queries, norm = module.q_proj(hidden), getattr(module, "q_norm", None)
        shape = (*hidden.shape[:2], -1, module.head_dim)
        if norm is None:
            queries = queries.view(shape)
        elif norm.weight.numel() == queries.shape[-1]:  # one norm over all heads
            queries = norm(queries).view(shape)
        else:
            queries = norm(queries.view(shape))
        queries = queries.transpose(1, 2)
        rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
        return rotate(queries, queries[:, :1], *rotary)[0]

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._input = args[0] if args else kwargs["hidden_states"], kwargs.get("position_embeddings")

    @torch.no_grad()
    def _verify(self, model: PreTrainedModel) -> None:
        """Run one token: each layer's own queries must come out of its own input."""
        probe = _Probe(self, len(self._modules))
        ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        model(input_ids=ids, position_ids=ids + _PROBE_POSITION, use_cache=False, kv_cache=probe)
        if probe.layers != len(self._modules) or probe.wrong:
            told = f" ({probe.wrong[0]})" if probe.wrong else ""
            raise Unsupported(f"queries of a later layer cannot be computed outside {self._kind}'s attention{told}")


class _Probe:
    """In place of a cache: compares queries, and gives each head its value as the output."""

    def __init__(self, ahead: QueriesAhead, layers: int):
        self.ahead, self.layers, self.wrong = ahead, 0, []
        self.windows = [None] * layers

    def attend(
        self, layer_idx: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float, sinks: Tensor | None
    ) -> Tensor:
        self.layers += 1
        try:
            torch.testing.assert_close(self.ahead(layer_idx, 0), queries, rtol=1e-2, atol=1e-2)
        except (AssertionError, AttributeError, TypeError, ValueError, RuntimeError) as error:
            self.wrong.append(
                f"layer {layer_idx}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            )
        return values.repeat_interleave(queries.shape[1] // values.shape[1], 1)
