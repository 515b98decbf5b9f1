"""Attention over a layer's cache, with the log-sum-exp or the weights that scoring needs.

Shapes: queries `[batch, q_heads, m, head_dim]`, keys and values `[batch, kv_heads, n, head_dim]`, output
`[batch, q_heads, m, head_dim]`. Query i sees the keys `j <= offset + i`. Query heads of one KV head are stacked in the
row dimension wherever a kernel would otherwise need the keys expanded.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kvfrontier.cache.precise import precise
from kvfrontier.cache.scores import EACH_ROW, RowWeights, column_sums, matrix_sums, row_lse

Kernel = Literal["sdpa", "eager"]
Scoring = Literal["lse", "two_pass", "eager"]


def attend_block(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, offset: int, kernel: Kernel, scoring: Scoring | None,
    row_weights: RowWeights = EACH_ROW, sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Causal attention of a block of queries and, with `scoring`, its weights' column sums `[batch, q_heads, n]`.

    sinks: `[q_heads]`, a logit beside the keys' that takes weight and gives no value (GPT-OSS).
    """
    if kernel == "eager":
        weights = causal_weights(queries, keys, scale, offset, sinks)
        mass = None if scoring is None else matrix_sums(weights, row_weights)
        return _weighted_values(weights, values), mass
    if sinks is not None:
        return _attend_beside_sinks(queries, keys, values, scale, offset, scoring, row_weights, sinks)
    if scoring == "lse":
        out, lse = _attend_with_lse(queries, keys, values, scale, offset)
        return out, column_sums(queries, keys, scale, offset, lse, row_weights)
    out = _attend(queries, keys, values, scale, offset)
    if scoring == "two_pass":
        return out, column_sums(queries, keys, scale, offset, weights=row_weights)
    return out, None if scoring is None else matrix_sums(causal_weights(queries, keys, scale, offset), row_weights)


def attend_decode(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, valid: Tensor | None, with_mass: bool,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention of one query a row over all valid slots, and the weights `[batch, q_heads, n]` if wanted.

    valid: `[batch, kv_heads, n]`, None where all slots are. No causal mask: everything kept lies in the past.
    """
    batch, q_heads, _, _ = queries.shape
    kv_heads, length = keys.shape[1], keys.shape[2]
    stacked = queries.reshape(batch, kv_heads, q_heads // kv_heads, -1)
    mask = None if valid is None else valid[:, :, None]
    if not with_mass and sinks is None:
        mask = mask if mask is None else mask.expand(-1, -1, stacked.shape[2], -1)
        out = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=mask, scale=scale)
        return out.reshape(batch, q_heads, 1, -1), None
    scores = precise(stacked @ keys.transpose(2, 3)).mul_(scale)
    if mask is not None:
        scores.masked_fill_(~mask, -torch.inf)
    weights = weigh(scores, sinks if sinks is None else sinks.view(kv_heads, -1, 1))
    out = weights.to(values.dtype) @ values
    return out.reshape(batch, q_heads, 1, -1), weights.reshape(batch, q_heads, length) if with_mass else None


def weigh(scores: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Softmax over the last axis; sinks: one more logit of each row, as wide as `scores[..., :1]` when expanded."""
    if sinks is None:
        return scores.softmax(-1)
    beside = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, beside), -1).softmax(-1)[..., :-1]


def causal_weights(queries: Tensor, keys: Tensor, scale: float, offset: int, sinks: Tensor | None = None) -> Tensor:
    """The softmax matrix itself, float32 (of a float64 model float64) `[batch, q_heads, m, n]`: O(m n) memory."""
    batch, q_heads, rows, _ = queries.shape
    kv_heads, length = keys.shape[1], keys.shape[2]
    stacked = queries.reshape(batch, kv_heads, -1, queries.shape[3])  # [batch, kv_heads, group * m, head_dim]
    scores = precise(stacked @ keys.transpose(2, 3)).mul_(scale).view(batch, q_heads, rows, length)
    scores.masked_fill_(~causal_mask(rows, length, offset, keys.device), -torch.inf)
    return weigh(scores, sinks if sinks is None else sinks[:, None, None])


def causal_mask(rows: int, length: int, offset: int, device: torch.device) -> Tensor:
    """`[m, n]`, True where query i sees key j."""
    return torch.arange(length, device=device) <= torch.arange(rows, device=device)[:, None] + offset


def _weighted_values(weights: Tensor, values: Tensor) -> Tensor:
    batch, q_heads, rows, length = weights.shape
    kv_heads = values.shape[1]
    stacked = weights.to(values.dtype).view(batch, kv_heads, -1, length)
    return (stacked @ values).reshape(batch, q_heads, rows, -1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float, offset: int) -> Tensor:
    if offset == 0 and queries.shape[2] == keys.shape[2]:
        grouped = queries.shape[1] != keys.shape[1]
        rows = _rows(keys), _rows(values)
        return F.scaled_dot_product_attention(queries, *rows, is_causal=True, scale=scale, enable_gqa=grouped)
    stacked, mask = _stack_with_mask(queries, keys, offset)
    out = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=mask, scale=scale)
    return out.reshape(*queries.shape[:3], -1)


def _rows(tensor: Tensor) -> Tensor:
    """A head's tokens one after the other, not every head's in turn: the CPU kernel reads them for each query tile."""
    return tensor.contiguous() if tensor.device.type == "cpu" else tensor


def _attend_beside_sinks(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, offset: int, scoring: Scoring | None,
    row_weights: RowWeights, sinks: Tensor,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """As `attend_block`. A sink adds to a row's normaliser alone, so all of the row's weights shrink by one factor."""
    out, lse = _attend_with_lse(queries, keys, values, scale, offset)
    lse = row_lse(queries, keys, scale, offset) if lse is None else lse
    with_sinks = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
    out = out * (lse - with_sinks).exp().to(out.dtype)[..., None]
    if scoring == "eager":
        return out, matrix_sums(causal_weights(queries, keys, scale, offset, sinks), row_weights)
    return out, None if scoring is None else column_sums(queries, keys, scale, offset, with_sinks, row_weights)


def _attend_with_lse(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, offset: int
) -> tuple[Tensor, Tensor | None]:
    """Attention and its log-sum-exp `[batch, q_heads, m]`; None where no kernel returns it (scoring: two passes)."""
    square = offset == 0 and queries.shape[2] == keys.shape[2]
    if keys.shape[3] != values.shape[3] or (keys.is_cuda and not square):
        return _attend(queries, keys, values, scale, offset), None
    if keys.is_cuda:
        return _cuda_lse(queries, keys, values, scale)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if square:
        return flash(queries, _rows(keys), _rows(values), 0.0, True, scale=scale)
    stacked, mask = _stack_with_mask(queries, keys, offset)
    bias = torch.zeros(mask.shape, dtype=queries.dtype).masked_fill_(~mask, -torch.inf)
    out, lse = flash(stacked, keys, values, 0.0, False, attn_mask=bias, scale=scale)
    return out.reshape(queries.shape), lse.reshape(queries.shape[:3])


def _cuda_lse(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The fused CUDA kernels; neither takes grouped heads through this entry, so one layer's keys are expanded."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    if queries.dtype in (torch.float16, torch.bfloat16):
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out, lse = flash(queries, keys, values, 0.0, True, False, scale=scale)[:2]
    else:
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        out, lse = efficient(queries, keys, values, None, True, 0.0, True, scale=scale)[:2]
    return out, lse[:, :, : queries.shape[2]]  # kernels may pad rows


def _stack_with_mask(queries: Tensor, keys: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Queries `[batch, kv_heads, group * m, head_dim]` and their mask `[group * m, n]`."""
    batch, q_heads, rows, _ = queries.shape
    kv_heads = keys.shape[1]
    mask = causal_mask(rows, keys.shape[2], offset, keys.device)
    return queries.reshape(batch, kv_heads, -1, queries.shape[3]), mask.repeat(q_heads // kv_heads, 1)
