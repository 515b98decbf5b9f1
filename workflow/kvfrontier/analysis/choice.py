"""Name the binding constraint first: what the data of one group say for each. No conclusion is written here."""

from __future__ import annotations

from dataclasses import dataclass

from kvfrontier.analysis.exact import READINGS
from kvfrontier.analysis.frontier import Group, Row
from kvfrontier.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Hint:
    """If `constraint` binds, take `choice`; `because` gives the numbers."""

    constraint: str
    choice: str
    because: str


DEVICE, HOST, EVERYWHERE = "device_bytes", "host_bytes", "kv_bytes"
MEMORIES = {DEVICE: "device memory (a GPU's)", HOST: "host memory", EVERYWHERE: "memory, all tiers together"}
SHARES = {DEVICE: "device_share", EVERYWHERE: "kv_share"}
"""Each kind of bytes, and the same as a share of the full cache."""


def hints(group: Group) -> list[Hint]:
    """One hint a constraint, as far as the group has the measurements for it (host memory: where some is used)."""
    memories = (DEVICE, HOST, EVERYWHERE) if group.has_tiers else (DEVICE,)
    found = [_least_memory(group, memory) for memory in memories]
    found += [_most_faithful(group), _most_alike(group), _fastest(group), _first_token(group)]
    return [hint for hint in found if hint]


def by_construction(group: Group, quality: str = "retention") -> list[Row]:
    """Rows whose retention (or `as_full`: answers to tasks) is the full cache's whatever their decode steps lose, since
    it was asked for without one."""
    exact = [row for row in group.rows if row["exact"] == READINGS and row[quality] is not None]
    return [row for row in exact if row[f"{quality}_is_read"]]


def keeps_retention(group: Group) -> list[Row]:
    """Rows whose retention is not below the full cache's 95 % interval; none where that says nothing, as it does for
    those that have it by construction."""
    full, given = group.full, by_construction(group)
    if full is None or full["retention_low"] is None or group.is_uninformative:
        return []
    rows = [row for row in group.rows if row["retention"] is not None and row not in given]
    return [row for row in rows if row["retention"] >= full["retention_low"]]


def _least_memory(group: Group, memory: str) -> Hint | None:
    candidates = [row for row in keeps_retention(group) if row[memory] is not None]
    if not candidates:
        return None
    # Of those that take none of it, the one that takes least elsewhere.
    best, full = min(candidates, key=lambda row: (row[memory], row[EVERYWHERE])), group.full
    because = (
        f"least KV bytes there ({_kv(best, memory)}) with retention {best['retention']:.0%} inside the full cache's "
        f"interval ({full['retention_low']:.0%} to {full['retention_high']:.0%}, {full['retention_n']} facts)"
    )
    elsewhere = best[EVERYWHERE] - best[memory]
    if memory != EVERYWHERE and group.has_tiers and elsewhere > 0.01 * best[EVERYWHERE]:
        because += f"; {format_bytes(elsewhere)} lie elsewhere"
    return Hint(f"{MEMORIES[memory]}, facts must be kept", best["strategy_label"], because)


def _most_faithful(group: Group) -> Hint | None:
    candidates = [row for row in group.rows if row["kl"] is not None and (row["device_share"] or 1) <= 0.5]
    if not candidates:
        return None
    best = min(candidates, key=lambda row: row["kl"])
    because = (
        f"least divergence from the full cache ({best['kl']:.3g} nat) among those with at most half its KV bytes on "
        "the device"
    )
    return Hint(f"{MEMORIES[DEVICE]}, text must stay the same", best["strategy_label"], because)


def _most_alike(group: Group) -> Hint | None:
    given = by_construction(group, "as_full")
    candidates = [row for row in group.rows if row["as_full"] is not None and (row["device_share"] or 1) <= 0.5]
    candidates = [row for row in candidates if row not in given]
    if not candidates:
        return None
    best = max(candidates, key=lambda row: (row["as_full"], -row["device_share"]))
    because = (
        f"most documents answered as with the full cache ({best['as_full']:.0%} of {best['as_full_n']:,}) among those "
        "with at most half its KV bytes on the device"
    )
    return Hint(f"{MEMORIES[DEVICE]}, answers must stay the same", best["strategy_label"], because)


def _fastest(group: Group) -> Hint | None:
    candidates = [row for row in group.rows if row["tokens_per_s"] is not None]
    if not candidates:
        return None
    best, full = max(candidates, key=lambda row: row["tokens_per_s"]), group.full
    because = f"most output tokens/s ({best['tokens_per_s']:.3g})"
    if full and full is not best and full["tokens_per_s"]:
        because += f", {best['tokens_per_s'] / full['tokens_per_s']:.2f} times the full cache's"
        if _overlap(best, full, "tokens_per_s"):
            because += "; the intervals overlap"
    return Hint("throughput", best["strategy_label"], because + _quality(group, best))


def _first_token(group: Group) -> Hint | None:
    candidates = [row for row in group.rows if row["ttft_s"] is not None]
    if not candidates:
        return None
    best = min(candidates, key=lambda row: row["ttft_s"])
    because = f"first token after {format_seconds(best['ttft_s'])}"
    return Hint("time to first token", best["strategy_label"], because + _quality(group, best))


def _overlap(a: Row, b: Row, name: str) -> bool:
    low, high = f"{name}_low", f"{name}_high"
    return None not in (a[low], b[low]) and a[low] <= b[high] and b[low] <= a[high]


def _quality(group: Group, row: Row) -> str:
    """What it costs: retention, or, where that is missing or shows nothing, answers to tasks or divergence."""
    if row["retention"] is not None and not group.is_uninformative:
        return f"; retention {row['retention']:.0%}"
    if row["as_full"] is not None:
        return f"; {row['as_full']:.0%} of the documents answered as with the full cache"
    return "" if row["kl"] is None else f"; divergence {row['kl']:.3g} nat"


def _kv(row: Row, memory: str) -> str:
    share = row.get(SHARES.get(memory, ""))
    return format_bytes(row[memory]) + ("" if share is None else f", {share:.0%} of the full cache")
