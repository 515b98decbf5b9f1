"""Every chart renders; the page loads nothing. Hostile rows: tests/property/test_fuzz_results.py."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pyarrow as pa
import pytest
from kvfrontier.reports.chart import charts, data_of
from kvfrontier.reports.figures import _shortened, draw_all
from kvfrontier.reports.page import script_json, write_report
from kvfrontier.reports.style import MOST_CONFIGURATIONS, MOST_PANELS, MOST_POINTS, inline, readable
from kvfrontier.store.database import build_database
from kvfrontier.store.query import open_database
from synthetic import BASELINE, write_campaign


class Elements(HTMLParser):
    """Tags with their attributes, as a browser's parser sees them."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    folder = write_campaign(tmp_path_factory.mktemp("with_baseline"), more=(BASELINE,))
    build_database(folder)
    return write_report(folder)


SHOWN = [found for found in charts() if found.name != "over_baseline"]  # which has tests of its own


@pytest.mark.parametrize("found", SHOWN, ids=lambda found: found.name)
def test_a_chart_renders_its_data(found, connection):
    table = data_of(found, connection)
    assert table.num_rows > 0
    spec = found.draw(table).to_dict()
    assert spec["$schema"].endswith(".json")
    assert found.caption and found.missing


def test_a_chart_is_named_after_its_file_and_its_function():
    for found in charts():
        assert found.draw.__name__ == found.name


def test_every_figure_is_also_png_and_svg(page):
    folder = page.parent / "figures"
    for found in charts():
        assert (folder / f"{found.name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / f"{found.name}.svg").read_text()


def test_the_page_loads_nothing(page):
    elements = Elements(page.read_text()).found
    assert not [attrs for _, attrs in elements if "src" in attrs]
    assert not [attrs for tag, attrs in elements if tag == "link"]
    assert {attrs["href"][0] for tag, attrs in elements if tag == "a"} == {"#"}
    assert not re.search(r"url\(\s*['\"]?http", page.read_text().split("<script>")[0])
    assert [attrs for tag, attrs in elements if tag == "meta" and "default-src 'none'" in attrs.get("content", "")]


def test_the_page_tells_what_failed_and_what_is_modelled(page):
    text = page.read_text()
    assert "asked for 3.0 GiB, 1.0 GiB free (test)" in text
    assert "MODELLED" in text
    assert "test-host" in text


def test_the_page_says_what_is_beyond_chance_and_what_each_axis_counts(page):
    text = page.read_text()
    assert text.count('<h2 id="beyond-chance">') == 1 and "retention_correct against full · test-alpha" in text
    assert "Not told apart does not mean equal" in text and "Device KV: keys, values" in text


def test_the_page_says_what_the_full_cache_can_do_before_what_is_lost_of_it(page):
    text = page.read_text()
    assert 0 < text.index("<h3>What the full cache can do</h3>") < text.index("How accuracy falls with the budget</h3>")
    assert "guessing</td>" in text and "more tables" not in text


def test_legends_say_only_what_tells_strategies_apart(connection):
    short, engines = {"h2o": "h2o(a=1)"}, {"torch(b=1, c=2)": "torch(c=2)"}
    table = pa.table(
        {
            "series": ["h2o", "full", None],
            "configuration": ["h2o 0.3", "h2o_x 0.3", "h2o"],
            "panel": ["m · torch(b=1, c=2) · cpu | batch 1", "m · vllm · cpu", None],
            "n": [1, 2, 3],
        }
    )
    assert _shortened(table, short, engines).to_pydict() == {
        "series": ["h2o(a=1)", "full", None],
        "configuration": ["h2o(a=1) 0.3", "h2o_x 0.3", "h2o(a=1)"],
        "panel": ["m · torch(c=2) · cpu | batch 1", "m · vllm · cpu", None],
        "n": [1, 2, 3],
    }


def test_json_cannot_end_its_script_element():
    assert "</" not in script_json({"a": "</script>", "b": "<!--"})


def test_a_chart_without_data_says_why(tmp_path):
    folder = write_campaign(tmp_path, run=False)
    build_database(folder)
    text = write_report(folder).read_text()
    with open_database(folder) as connection:
        assert all(figure.spec is None for figure in draw_all(connection))
    for found in charts():
        assert found.missing.split(":")[0] in text
    assert not list((folder / "figures").glob("*"))
    assert "Nothing is measured yet." in text


def test_more_than_5000_rows_nan_and_dots_in_names_survive():
    table = pa.table({"panel": ["a.b[c]"] * 6000, "value": [float("nan")] * 6000})
    values = inline(table).to_dict()["values"]
    assert len(values) == 6000
    assert values[0] == {"panel": "a.b[c]", "value": None}


def test_panels_and_configurations_beyond_the_readable_number_are_left_to_sql():
    names = [f"p{index}" for index in range(40) for _ in range(50)]
    table = pa.table({"panel": names, "configuration": [str(index) for index in range(50)] * 40})
    assert readable(table).num_rows == MOST_PANELS * MOST_CONFIGURATIONS


def test_points_on_the_frontier_are_kept_first():
    table = pa.table({"panel": ["p"] * 1000, "on_frontier": [index == 999 for index in range(1000)]})
    shown = readable(table)
    assert shown.num_rows == MOST_POINTS
    assert shown["on_frontier"].to_pylist()[-1]
