"""The reference pages say what the code does, because their tables are generated from the same source."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.reference_pages import fill_page, main

PAGES = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", ["settings.md", "broker-settings.md", "namesrv-settings.md", "spark.md"])
def test_the_page_is_what_the_tables_make(name: str) -> None:
    page = (PAGES / name).read_text(encoding="utf-8")
    assert "<!-- from penstock." in page
    assert page == fill_page(page), f"update it: python -m penstock.config.reference_pages docs/reference/{name}"


def test_only_what_is_between_the_marks_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- from penstock.namesrv.settings:CHANGEABLE -->\nold\n<!-- end -->\n\nafter\n")
    main([str(page)])
    assert page.read_text() == (
        "before\n\n<!-- from penstock.namesrv.settings:CHANGEABLE -->\n\n"
        "`orderMessageEnable`, `autoCreateTopicEnable`, `brokerExpireSeconds`.\n\n<!-- end -->\n\nafter\n"
    )


def test_a_value_that_is_refused_is_said_with_the_meaning() -> None:
    page = fill_page("<!-- from penstock.store.settings:TABLE -->\n<!-- end -->")
    assert "| `enableLmq` | `false` |  | light message queues; `true` is refused: there are no light queues |" in page
    assert "| `warmMapedFileEnable`, also `warmMappedFileEnable` | `false` |  |" in page
