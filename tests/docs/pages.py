"""The documents: which there are, their headings as anchors, and their links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh.md", "CHANGELOG.md", "deploy/README.md")),
    *sorted(DOCS.rglob("*.md")),
]


class Link(NamedTuple):
    """A link within the repository."""

    path: str
    anchor: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """Without fenced blocks and code within a line, where brackets are no links and `#` is no heading."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.M | re.S))


def links_of(text: str) -> list[Link]:
    found = re.findall(r"\]\(\s*([^)\s#]*)(?:#([^)\s]*))?\s*\)", without_code(text))
    return [Link(path, anchor) for path, anchor in found if "://" not in path]


def anchors_of(text: str) -> set[str]:
    """As sites make them of headings: lower case, without punctuation, words joined by dashes."""
    fenced = re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", fenced, re.M)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s", "-", heading) for heading in plain}
