"""Does a row that was measured again say the same?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvfrontier.analysis.compare import Change, Comparison
from kvfrontier.metrics import METRICS

SAME_MACHINE = ("cpu", "cores", "device_name", "threads")
"""Facts of the provenance that must agree before times are held against each other."""


@dataclass(frozen=True)
class Reproduction:
    """reasons: why not, empty where it is reproduced. remarks: what to know all the same."""

    reasons: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def is_reproduced(self) -> bool:
        return not self.reasons


def judge(before: Mapping[str, Any], after: Mapping[str, Any], found: Comparison, most_times: float) -> Reproduction:
    """Compare two rows (`found`: them as one pair).

    The status must be the same; counts and bytes equal; what a model says equal but for rounding; times within a
    factor `most_times`, where the machine is the same one.
    """
    reasons, remarks = [], []
    if before["status"] != after["status"]:
        why = f" ({after['reason']})" if after["reason"] else ""
        reasons.append(f"the row's status is {before['status']}, now it is {after['status']}{why}")
    elif before["reason_class"] != after["reason_class"]:
        remarks.append(f"the row's error is {before['reason_class']}, now it is {after['reason_class']}")
    for metric, side in found.one_sided:
        reasons.append(f"{metric} is {'missing now' if side == 'a' else 'not in the row'}")
    machine = [name for name in SAME_MACHINE if before["provenance"].get(name) != after["provenance"].get(name)]
    timed = [change for change in found.by_cell if is_timed(change)]
    for change in found.by_cell:
        if not is_timed(change) and change.differing:
            reasons.append(f"{change.metric}{_at(change)}: {change.differing} of {change.n} values differ")
    if machine and timed:
        remarks.append(f"times are not judged: another machine ({', '.join(machine)})")
        return Reproduction(tuple(reasons), tuple(remarks))
    for change in timed:
        if change.effect is not None and METRICS[change.metric].unit != "B":
            slower = max(change.effect, 1 / change.effect)
            if slower > most_times:
                reasons.append(f"{change.metric}{_at(change)} is {change.effect:.2f} times the row's")
    beyond = sorted({change.metric for change in timed if change.verdict in ("worse", "better", "changed")})
    if beyond and not reasons:
        remarks.append(f"beyond the noise of the repeats, within a factor of {most_times:g}: {', '.join(beyond)}")
    return Reproduction(tuple(reasons), tuple(remarks))


def is_timed(change: Change) -> bool:
    """Whether a value is another one each time, however right it is."""
    return change.source == "measured" and METRICS[change.metric].nature == "noisy"


def _at(change: Change) -> str:
    return f" ({change.place})" if change.place else ""
