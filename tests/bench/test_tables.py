"""The tables of the documents are those of the kept runs."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from support.bench_reports import SPEED, report_of, runs

from bench.__main__ import SUITES
from bench.report import RESULTS, keep, private_words
from bench.run import summarise
from bench.tables import PAGES, SHORT, Line, filled, tables

PAGE = "before\n<!-- bench:store -->\nold figures\n<!-- bench:store end -->\nafter\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_what_the_kept_runs_say(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == filled(text, tables()), "update it: python -m bench tables"


def test_every_suite_has_a_place_on_the_page_of_performance() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    for suite in SUITES:
        assert text.count(f"<!-- bench:{suite.name} -->\n") == text.count(f"<!-- bench:{suite.name} end -->\n") == 1


def test_no_kept_file_names_a_folder_or_a_host() -> None:
    for path in RESULTS.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert private_words(text) == []
        assert not re.search(r"(?<![\w.])/(tmp|home|root|work|var|opt|usr)/", text), path.name


def test_the_table_replaces_what_stood_between_the_markers(tmp_path: Path) -> None:
    keep(report_of(summarise(SPEED, runs(20, 20, 20), runs(10, 10, 10))), tmp_path)
    text = filled(PAGE, tables(tmp_path))
    assert text.startswith("before\n<!-- bench:store -->\n| Row | Penstock | Java |")
    assert text.endswith("<!-- bench:store end -->\nafter\n")
    assert "| speed | 20 /s | 10 /s | 2.00 | 2.00 - 2.00 |  | >= 1x | yes |" in text
    assert "old figures" not in text
    assert filled(text, tables(tmp_path)) == text


def test_old_figures_stay_until_a_full_run_replaces_them(tmp_path: Path) -> None:
    assert filled(PAGE, tables(tmp_path)) == PAGE


def test_the_short_table_has_the_lines_of_which_all_rows_were_measured(tmp_path: Path) -> None:
    def keep_lines(lines: tuple[Line, ...]) -> None:
        for line in lines:
            results = [
                summarise(msgspec.structs.replace(SPEED, name=row), runs(20, 20, 20), runs(10, 10, 10))
                for row in line.rows
            ]
            keep(msgspec.structs.replace(report_of(*results), suite=line.suite), tmp_path)

    assert tables(tmp_path)("short") is None
    (consume,) = [line for line in SHORT if "consume-128b" in line.rows]
    keep_lines((msgspec.structs.replace(consume, rows=consume.rows[:1]),))
    assert tables(tmp_path)("short") is None
    keep_lines((consume,))
    english = tables(tmp_path)("short")
    assert english is not None
    assert english.count("\n") == 3
    keep_lines(SHORT)
    english, chinese = tables(tmp_path)("short"), tables(tmp_path)("short-zh")
    assert english is not None
    assert chinese is not None
    assert "| consume, 128 B / 1 KB | RocketMQ's broker | 2.00 / 2.00 |" in english
    assert english.count("\n") == chinese.count("\n") == len(SHORT) + 2
