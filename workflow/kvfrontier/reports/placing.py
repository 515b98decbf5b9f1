"""Where points that would hide each other stand, and where their labels have room: in pixels of a panel, y downward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STEP = 9.0
"""Between points side by side; a point is a little wider."""
MOST_STEPS = 2
"""A point is never drawn further from its value than two are wide: where there are more, they lie over each other."""
CHARACTER, LINE, GAP = 6.6, 11.0, 8.0
POINT = 5.5


class Mark(NamedTuple):
    """A point with its bar from `top` to `bottom`."""

    x: float
    y: float
    top: float
    bottom: float


class Place(NamedTuple):
    """Where a label begins, from its point, and which end of it does."""

    dx: float
    dy: float
    align: str


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def side_by_side(marks: Sequence[Mark]) -> list[float]:
    """The x of each mark, moved by MOST_STEPS at most, to where fewest bars and points lie over its own."""
    placed: list[tuple[float, Mark]] = []
    moved = [0.0] * len(marks)
    for index in sorted(range(len(marks)), key=lambda index: (marks[index].x, marks[index].y, index)):
        mark = marks[index]
        near = [x for x, other in placed if _overlap(mark, other)]
        steps = sorted(range(-MOST_STEPS, MOST_STEPS + 1), key=lambda step: (abs(step), -step))
        places = [mark.x + step * STEP for step in steps]
        moved[index] = min(places, key=lambda x: sum(abs(x - other) < STEP - 0.5 for other in near))
        placed.append((moved[index], mark))
    return moved


def _overlap(a: Mark, b: Mark) -> bool:
    return a.top - POINT < b.bottom + POINT and b.top - POINT < a.bottom + POINT


def label_places(
    points: Sequence[tuple[float, float]], labels: Sequence[str], width: float, height: float
) -> list[Place | None]:
    """A place for each label that covers no point and no other label, inside the panel; None where there is no room."""
    taken = [_Box(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in points]
    found: list[Place | None] = []
    for (x, y), label in zip(points, labels, strict=True):
        for place in _candidates():
            box = _box(x, y, len(label) * CHARACTER, place)
            is_inside = box.left >= 0 and box.right <= width + GAP and box.top >= -2 * LINE and box.bottom <= height
            if is_inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                found.append(place)
                break
        else:
            found.append(None)
    return found


def _candidates() -> list[Place]:
    beside = [Place(GAP, dy, "left") for dy in (-8, 0, 8)] + [Place(-GAP, dy, "right") for dy in (-8, 0, 8)]
    return [*beside, Place(0, -14, "center"), Place(0, 14, "center")]


def _box(x: float, y: float, width: float, place: Place) -> _Box:
    start = x + place.dx - {"left": 0.0, "center": width / 2, "right": width}[place.align]
    return _Box(start, y + place.dy - LINE / 2, start + width, y + place.dy + LINE / 2)
