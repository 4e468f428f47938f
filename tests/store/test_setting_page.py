"""The reference page says what the code does, because it is made from the same table."""

from __future__ import annotations

from support import ROOT

from penstock.store.setting_page import settings_page

PAGE = ROOT / "docs" / "reference" / "settings.md"


def test_the_page_is_what_the_table_makes() -> None:
    assert PAGE.read_text() == settings_page(), (
        "write it anew: python -m penstock.store.setting_page > docs/reference/settings.md"
    )
