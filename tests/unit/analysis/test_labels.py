"""Labels are as short as tells them apart, and never the same twice."""

from __future__ import annotations

import pytest
from kvfrontier.analysis.labels import shorter


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["h2o", "full"], ["h2o", "full"]),
        (["h2o(decode_evict=off)", "full"], ["h2o(decode_evict=off)", "full"]),
        (["h2o", "h2o(decode_evict=off)"], ["h2o", "h2o(decode_evict=off)"]),
        (
            [
                "anchors(anchor_share=0.5, protect=('random',))",
                "anchors(anchor_share=0.5, protect=('sinks', 'numerals'))",
            ],
            ["anchors(protect=random)", "anchors(protect=sinks+numerals)"],
        ),
        (["a(b=(1, 2), c=3)", "a(b=(1, 3), c=3)"], ["a(b=(1, 2))", "a(b=(1, 3))"]),
        (["a(odd", "a(odd)"], ["a(odd", "a(odd)"]),
        (["a(x=('b',))", "a(x=b)"], ["a(x=('b',))", "a(x=b)"]),  # they would be the same
    ],
)
def test_what_all_variants_share_is_left_out(labels, expected):
    assert shorter(labels) == dict(zip(labels, expected, strict=True))
