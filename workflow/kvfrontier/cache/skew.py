"""InfiniGen's skewing: an orthogonal A for each KV head, in whose columns queries have most of their length in few.

(Q A)(K A)^T = Q K^T. With the singular value decomposition Q = U S V^T of a prompt's rotated queries, A = V; the few
columns with the largest sums of |Q A| tell nearly as much of the product as all of them.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.precise import precise
from kvfrontier.cache.view import LayerView

_QUERIES = "skew_queries"  # [batch, q_heads, rows, head_dim], zero beyond a row's own
COLUMNS = "skew_columns"  # [batch, kv_heads, head_dim, columns] of A, in the precision that it was found in
PARTIAL = "partial_keys"  # of each slot: its key times those columns, in the model's type


def note_queries(view: LayerView, most: int) -> None:
    """Remember at most `most` evenly spaced queries of each row's prompt: whatever its chunks, the same ones."""
    noted = []
    for row, (new, seen) in enumerate(zip(view.new_tokens, view.seen_tokens, strict=True)):
        before, spacing = seen - new, _spacing(seen, most)
        part = view.queries[row, :, :new][:, -before % spacing :: spacing]
        if before:
            spacing_before = _spacing(before, most)
            older = view.cache.extras[_QUERIES][row, :, : ceil(before / spacing_before)]
            part = torch.cat((older[:, :: spacing // spacing_before], part), 1)
        noted.append(part.transpose(0, 1))
    view.cache.extras[_QUERIES] = pad_sequence(noted, batch_first=True).transpose(1, 2).contiguous()


def _spacing(tokens: int, most: int) -> int:
    """The smallest power of two s such that every s-th of the tokens are at most `most`."""
    spacing = 1
    while ceil(tokens / spacing) > most:
        spacing *= 2
    return spacing


def find_columns(cache: LayerCache, ratio: float) -> None:
    """Choose `ratio` of A's columns for each KV head, from the queries noted so far, which are forgotten."""
    queries = cache.extras.pop(_QUERIES)
    batch, kv_heads = cache.counts.shape
    stacked = precise(queries).reshape(batch, kv_heads, -1, queries.shape[3])  # the group's rows, one below the other
    basis = skew(stacked)
    count = max(1, int(ratio * queries.shape[3] + 1e-9))
    best = (stacked @ basis).abs().sum(2).topk(count).indices.sort().values  # [batch, kv_heads, count]
    cache.extras[COLUMNS] = basis.gather(3, best[:, :, None].expand(-1, -1, basis.shape[2], -1))


def skew(queries: Tensor) -> Tensor:
    """A `[..., head_dim, head_dim]` of queries `[..., rows, head_dim]`: their right singular vectors.

    Taken as eigenvectors of Q^T Q, in float64: the same, at the cost of a head_dim x head_dim matrix. The smallest
    tilt decides between directions that Q does not tell apart, so that rounding does not.
    """
    gram = (queries.transpose(-1, -2) @ queries).double()
    dim = gram.shape[-1]
    tilt = torch.linspace(0, 1e-9, dim, dtype=gram.dtype, device=gram.device)
    largest = gram.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
    return torch.linalg.eigh(gram + torch.diag_embed(tilt * largest)).eigenvectors.flip(-1).to(queries.dtype)


def write_partial(cache: LayerCache, keys: Tensor, first: Tensor | None = None) -> None:
    """Hold the partial keys of `keys` `[batch, kv_heads, n, head_dim]`.

    They are those of the slots [0, n) or, with `first` `[batch, kv_heads]`, of the one slot of each head there.
    """
    partial = (precise(keys) @ cache.extras[COLUMNS]).to(keys.dtype)
    if PARTIAL not in cache.aux:
        cache.aux[PARTIAL] = partial.new_zeros(*cache.positions.shape, partial.shape[3])
    held = cache.aux[PARTIAL]
    if first is None:
        held[:, :, : keys.shape[2]] = partial
    else:
        held.scatter_(2, first.to(held.device)[..., None, None].expand_as(partial), partial)


def partial_scores(cache: LayerCache, queries: Tensor, scale: float) -> Tensor:
    """What queries `[batch, q_heads, 1, head_dim]` make of partial keys, `[batch, kv_heads, group, slots]`."""
    batch, kv_heads = cache.counts.shape
    partial = cache.aux[PARTIAL][:, :, : cache.slots]
    stacked = queries.reshape(batch, kv_heads, -1, queries.shape[3])
    seen = (precise(stacked) @ cache.extras[COLUMNS]).to(partial.dtype)
    return precise(seen @ partial.transpose(2, 3)).mul_(scale)
