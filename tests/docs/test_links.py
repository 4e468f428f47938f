"""Links between documents lead somewhere, to the right place of the page, and every page is in the site's menu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.documents import DOCS, PAGES, ROOT, anchors_of, links_of, name_of


def dead_links(page: Path, text: str) -> list[str]:
    dead = []
    for path, anchor in links_of(text):
        target = page.parent / path
        if path and not target.exists():
            dead.append(path)
        elif anchor and anchor not in anchors_of(target.read_text(encoding="utf-8") if path else text):
            dead.append(f"{path}#{anchor}")
    return dead


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page, page.read_text(encoding="utf-8")) == []


def test_a_dead_link_and_a_dead_anchor_are_noticed() -> None:
    text = "# Here\n[a](quickstart.md) [b](nowhere.md) [c](#here) [d](#there) `[e](code.md)`\n```\n[f](code.md)\n```\n"
    assert dead_links(DOCS / "index.md", text) == ["nowhere.md", "#there"]


def test_pages_of_the_site_link_to_nothing_outside_of_it() -> None:
    for page in DOCS.rglob("*.md"):
        for path, _ in links_of(page.read_text(encoding="utf-8")):
            assert (page.parent / path).resolve().is_relative_to(DOCS), f"{name_of(page)}: {path}"


def pages_in(menu: Any) -> list[str]:
    if isinstance(menu, str):
        return [menu]
    return [page for entry in (menu.values() if isinstance(menu, dict) else menu) for page in pages_in(entry)]


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = pages_in(menu)
    assert len(listed) == len(set(listed))
    assert set(listed) == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
