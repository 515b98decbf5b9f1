"""The report in a real browser, with every host unreachable: no console error, every chart drawn."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from kvfrontier.reports.chart import charts
from kvfrontier.reports.page import write_report
from kvfrontier.store.database import build_database
from synthetic import BASELINE, write_campaign

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps"),
    *("--enable-logging=stderr", "--virtual-time-budget=30000", "--dump-dom"),
)
MARKS = re.compile(r'<g class="mark-(?:symbol|rect|rule|line|text)[^"]*"[^>]*>\s*<(?:path|text|line)')


@pytest.fixture(scope="module")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None and os.environ.get("CI"):
        pytest.fail("chromium is missing: CI must open the report in a browser")
    if found is None:
        pytest.skip("chromium is not installed: the report was not opened in a browser")
    return found


def browse(chromium: str, page: Path, profile: Path, width: int = 1100) -> tuple[str, list[str]]:
    """The page's DOM after its scripts ran, and what they wrote to the console."""
    command = [
        chromium,
        *FLAGS,
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--window-size={width},900",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 390], ids=["desktop", "phone"])
def test_every_chart_is_drawn_without_network_or_console_message(chromium, tmp_path, width):
    folder = write_campaign(tmp_path / "results", more=(BASELINE,))
    build_database(folder)
    dom, console = browse(chromium, write_report(folder), tmp_path / "profile", width)
    assert not console
    assert f'data-drawn="{len(charts())}"' in dom
    places = re.split(r'<div class="chart[^"]*" id="', dom)[1:]
    assert [place.split('"')[0] for place in places] == [found.name for found in charts()]
    for place in places:
        assert len(MARKS.findall(place)) > 0, place[:60]


@pytest.mark.browser
def test_markup_in_names_never_runs(chromium, tmp_path):
    evil = "</script><script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
    folder = write_campaign(
        tmp_path / "results", models=(evil,), evil_reason=evil, more=(replace(BASELINE, model=evil),)
    )
    build_database(folder)
    dom, console = browse(chromium, write_report(folder), tmp_path / "profile")
    assert not console
    assert "<title>hacked" not in dom
    assert f'data-drawn="{len(charts())}"' in dom
