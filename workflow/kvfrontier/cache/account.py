"""Bytes that the layers of a batch hold and have moved, by metric name."""

from __future__ import annotations

from collections.abc import Sequence

from kvfrontier.cache.layer import LayerCache
from kvfrontier.cache.link import Link
from kvfrontier.metrics import (
    FETCHED_BYTES,
    KV_AUX_BYTES,
    KV_DEVICE_BYTES,
    KV_DISK_BYTES,
    KV_HOST_BYTES,
    KV_RESERVED_BYTES,
    STORED_BYTES,
)


def bytes_by_metric(layers: Sequence[LayerCache]) -> dict[str, int]:
    """Exact tensor bytes; a file's where there is one."""
    in_files = sum(layer.disk_bytes() for layer in layers)
    return {
        KV_DEVICE_BYTES: sum(layer.used_bytes() for layer in layers),
        KV_HOST_BYTES: sum(layer.host_bytes() for layer in layers),
        **({KV_DISK_BYTES: in_files} if in_files else {}),
        KV_AUX_BYTES: sum(layer.aux_bytes() for layer in layers),
        KV_RESERVED_BYTES: sum(layer.reserved_bytes() for layer in layers),
    }


def copied_bytes(layers: Sequence[LayerCache]) -> dict[str, int]:
    """Bytes that went over the layers' links so far; nothing without a link."""
    links = links_of(layers)
    if not links:
        return {}
    for link in links:
        link.drain()
    return {
        FETCHED_BYTES: sum(link.fetched_bytes for link in links),
        STORED_BYTES: sum(link.stored_bytes for link in links),
    }


def links_of(layers: Sequence[LayerCache]) -> list[Link]:
    """What the layers' tokens are copied over, each once."""
    return list({id(layer.link): layer.link for layer in layers if layer.link is not None}.values())
