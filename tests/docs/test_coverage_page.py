"""The coverage page lists what is missing or different: each row names a feature and says what Penstock does."""

from __future__ import annotations

import re

from support import TESTS

PAGE = TESTS.parent / "docs" / "reference" / "coverage.md"
SECTIONS = ("Not implemented", "Minor differences")
DEFINED_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.M)


def cells(line: str) -> list[str]:
    """A `|` within a cell is written `\\|`."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]


def rows_of(section: str) -> list[list[str]]:
    """The rows of the tables of a section, without their heads."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rules = {at for at, line in enumerate(lines) if set(line) <= set("|- ")}
    return [cells(line) for at, line in enumerate(lines) if at not in rules and at + 1 not in rules]


def names_by_file() -> dict[str, set[str]]:
    """The names of all test functions, also those in classes, by the stem of their file."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        found.setdefault(path.stem, set()).update(DEFINED_TEST.findall(path.read_text(encoding="utf-8")))
    return found


EXISTING = names_by_file()


def test_every_row_names_a_feature_once_and_says_what_penstock_does() -> None:
    sections = dict(re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", PAGE.read_text(encoding="utf-8"), re.M))
    rows = [row for title in SECTIONS for row in rows_of(sections[title])]
    assert len(rows) > 40
    assert [row for row in rows if len(row) != 2 or not all(row)] == []
    features = [feature for feature, _ in rows]
    assert len(features) == len(set(features))


def test_the_rows_of_a_section_are_read_without_the_heads_of_its_tables() -> None:
    section = "text\n\n| a | b |\n|---|---|\n| x | y |\n| p \\| q | |\n\n| c | d |\n|---|---|\n| z | w |\n"
    assert rows_of(section) == [["x", "y"], ["p \\| q", ""], ["z", "w"]]
