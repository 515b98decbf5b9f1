"""Labels as short as tells them apart: parameters that all variants of a strategy share say nothing in a legend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def shorter(labels: Iterable[str]) -> dict[str, str]:
    """Label -> the same with only what differs from the other labels of that strategy; texts in quotes without them.

    `anchors(policy=h2o, protect=('random',))` is `anchors(protect=random)` beside one that protects something else.
    """
    parts = {label: _parts(label) for label in labels}
    variants = Counter(name for name, _ in parts.values())
    shared = Counter((name, item) for name, settings in parts.values() for item in dict.fromkeys(settings))
    found = {}
    for label, (name, settings) in parts.items():
        differing = [item for item in settings if variants[name] == 1 or shared[name, item] < variants[name]]
        found[label] = f"{name}({', '.join(map(_plain, differing))})" if differing else name
    return found if len(set(found.values())) == len(found) else {label: label for label in parts}


def _parts(label: str) -> tuple[str, list[str]]:
    """`a(b=1, c=(2, 3))` -> a, [b=1, c=(2, 3)]; what does not read so stays whole."""
    name, bracket, rest = label.partition("(")
    if not bracket or not rest.endswith(")"):
        return label, []
    settings, depth = [""], 0
    for char in rest[:-1]:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            settings.append("")
        else:
            settings[-1] += char
    return name, [item.strip() for item in settings]


def _plain(setting: str) -> str:
    """`protect=('sinks', 'numerals')` -> `protect=sinks+numerals`."""
    key, sign, value = setting.partition("=")
    if value.startswith("(") and value.endswith(")") and "'" in value:
        value = "+".join(part.strip().strip("'") for part in value[1:-1].split(",") if part.strip())
    return f"{key}{sign}{value}"
