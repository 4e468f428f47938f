"""The README in English and the one in Chinese say the same: sections, commands, pictures, links and figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.documents import ROOT, blocks_of, links_of, without_code

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
LONGEST = 120


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def headings_of(text: str) -> list[str]:
    return re.findall(r"^(#+) ", without_code(text), re.M)


def pictures_of(text: str) -> list[str]:
    return re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)


def figures_of(text: str) -> list[list[str]]:
    """The numbers in each row of the tables, sorted: the words between them stand in another order in Chinese."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [sorted(re.findall(r"\d+(?:[.,]\d+)*", row)) for row in rows]


def code_of(page: Path) -> list[tuple[str, list[str]]]:
    """Without remarks, which are in the page's own language; drawings have words in it, too."""
    return [
        (block.kind, [line.partition("  #")[0].rstrip() for line in block.text.splitlines()])
        for block in blocks_of(page)
        if block.kind
    ]


def test_both_have_the_same_sections() -> None:
    assert headings_of(text_of(ENGLISH)) == headings_of(text_of(CHINESE))
    assert len(headings_of(text_of(ENGLISH))) >= 8


def test_both_have_the_same_blocks() -> None:
    assert code_of(ENGLISH) == code_of(CHINESE)
    assert len(blocks_of(ENGLISH)) == len(blocks_of(CHINESE))


def test_both_have_the_same_pictures_and_a_query_is_among_them() -> None:
    found = pictures_of(text_of(ENGLISH))
    assert found == pictures_of(text_of(CHINESE))
    assert {"docs/images/query.svg", "docs/images/usage-page.png"} <= set(found)
    for picture in found:
        assert (ROOT / picture).is_file()


def test_both_lead_to_the_same_documents() -> None:
    english, chinese = ({link.path for link in links_of(text_of(page))} for page in (ENGLISH, CHINESE))
    assert english - {"README.zh.md"} == chinese - {"README.md"}
    how_to = {f"docs/how-to/{path.name}" for path in (ROOT / "docs" / "how-to").iterdir()}
    assert how_to <= english


def test_both_have_the_same_figures_in_their_tables() -> None:
    english, chinese = figures_of(text_of(ENGLISH)), figures_of(text_of(CHINESE))
    assert english == chinese
    assert len(english) > 30


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_lines_are_not_too_long_to_be_read_as_text(page: Path) -> None:
    too_long = [
        line
        for line in text_of(page).splitlines()
        if len(line) > LONGEST and not line.startswith(("|", "![")) and "](" not in line
    ]
    assert too_long == []


def test_a_figure_that_differs_would_be_noticed() -> None:
    assert figures_of("| send, 128 B | 1.95 / 1.30 |") == [["1.30", "1.95", "128"]]
    assert figures_of("| send, 128 B | 1.95 / 1.31 |") == [["1.31", "1.95", "128"]]
