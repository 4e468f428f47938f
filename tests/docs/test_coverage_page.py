"""The coverage page is whole: every row has a state, and every test that it names exists."""

from __future__ import annotations

import re

import pytest
from support import TESTS

PAGE = TESTS.parent / "docs" / "reference" / "coverage.md"
HEADING = ["what", "state", "test or why"]
STATES = ("done", "different", "not yet")
DEFINED_TEST = re.compile(r"^ *def (test_\w+)", re.M)
NAMED_TEST = re.compile(r"`(test_\w+)::(test_\w+)`")


def cells(line: str) -> list[str]:
    """A `|` within a cell is written `\\|`."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]


def rows_of(page: str) -> list[tuple[int, list[str]]]:
    """(line number, cells) of all rows below the first section's heading, without the tables' heads."""
    lines = page.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("## "))
    tables = [(number, cells(line)) for number, line in enumerate(lines[begin:], begin + 1) if line.startswith("|")]
    return [(number, row) for number, row in tables if row != HEADING and not set("".join(row)) <= {"-"}]


def names_by_file() -> dict[str, set[str]]:
    """The names of all test functions, also those in classes, by the stem of their file."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        found.setdefault(path.stem, set()).update(DEFINED_TEST.findall(path.read_text(encoding="utf-8")))
    return found


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))
EXISTING = names_by_file()


def test_the_page_has_all_areas_of_the_store() -> None:
    areas = re.findall(r"^## (\d+) ", PAGE.read_text(encoding="utf-8"), re.M)
    assert areas == [str(number) for number in range(1, 11)]
    assert len(ROWS) > 400


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line-{row[0]}")
def test_a_row_says_what_and_how_and_names_the_test_or_the_reason(row: tuple[int, list[str]]) -> None:
    _, columns = row
    assert len(columns) == 3, columns
    what, state, shown = columns
    assert what
    assert state in STATES
    assert "TEST?" not in shown
    named = NAMED_TEST.findall(shown)
    if state == "done":
        assert named, "a row that is done names a test"
        assert re.sub(NAMED_TEST, "", shown).strip(", ") == "", "nothing but names of tests"
    else:
        assert len(shown.split()) > 1, "a reason"
    for file, test in named:
        assert test in EXISTING.get(file, ()), f"there is no test {file}::{test}"


def test_a_name_that_no_test_has_would_be_noticed() -> None:
    assert "test_a_name_that_no_test_has_would_be_noticed" in EXISTING["test_coverage_page"]
    page = ["## 1 The folder", "| what | state | test or why |", "|---|---|---|", "| a | done | `test_x::test_y` |"]
    (row,) = rows_of("\n".join(page))
    with pytest.raises(AssertionError, match="there is no test test_x::test_y"):
        test_a_row_says_what_and_how_and_names_the_test_or_the_reason(row)
