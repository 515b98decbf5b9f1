"""Points and labels of a chart: nothing covers anything, nothing leaves the panel, and it is the same every time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from kvfrontier.reports.placing import GAP, LINE, MOST_STEPS, POINT, STEP, Mark, _box, label_places, side_by_side

WIDTH, HEIGHT = 420, 280
POINTS = st.lists(st.tuples(st.floats(0, WIDTH), st.floats(0, HEIGHT)), max_size=30)


def test_points_at_one_place_stand_side_by_side_around_it():
    moved = side_by_side([Mark(100, 50, 40, 60)] * 5)
    assert sorted(moved) == [100 + step * STEP for step in (-2, -1, 0, 1, 2)]


def test_a_crowd_stays_at_its_value_and_lies_over_each_other_evenly():
    moved = side_by_side([Mark(100, 50, 40, 60)] * 10)
    assert sorted(moved) == sorted([100 + step * STEP for step in (-2, -1, 0, 1, 2)] * 2)


@settings(max_examples=100, deadline=None)
@given(POINTS)
def test_no_point_is_drawn_far_from_its_value(points):
    marks = [Mark(x, y, y - 20, y + 20) for x, y in points]
    assert all(abs(x - mark.x) <= MOST_STEPS * STEP + 1e-9 for x, mark in zip(side_by_side(marks), marks, strict=True))


def test_points_that_hide_nothing_stay():
    marks = [Mark(100, 50, 45, 55), Mark(100, 150, 140, 160), Mark(130, 50, 0, 280)]
    assert side_by_side(marks) == [100, 100, 130]


@settings(max_examples=100, deadline=None)
@given(POINTS)
def test_labels_cover_no_point_and_no_other_label_and_stay_inside(points):
    places = label_places(points, ["0.25"] * len(points), WIDTH, HEIGHT)
    boxes = [_box(x, y, 4 * 6.6, place) for (x, y), place in zip(points, places, strict=True) if place]
    for number, box in enumerate(boxes):
        assert box.left >= 0 and box.right <= WIDTH + GAP and box.top >= -2 * LINE and box.bottom <= HEIGHT
        assert not any(box.meets(other) for other in boxes[:number])
        for x, y in points:
            assert not (
                box.left < x + POINT and x - POINT < box.right and box.top < y + POINT and y - POINT < box.bottom
            )
    assert places == label_places(points, ["0.25"] * len(points), WIDTH, HEIGHT)


def test_a_lone_point_has_a_label_even_in_a_corner():
    for point in ((0, 0), (WIDTH, 0), (0, HEIGHT), (WIDTH, HEIGHT)):
        assert label_places([point], ["full"], WIDTH, HEIGHT) != [None]
