"""The site that `make docs` builds: no warning, the whole public API, and nothing that a page fetches from elsewhere.

tests/browser/test_site.py searches in it, from a folder.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
from support.documents import DOCS
from support.site import build_site

from penstock.client import Admin

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_page_is_built(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        assert (site / page.relative_to(DOCS)).with_name(name).is_file()


@pytest.mark.parametrize("module", ["client", "store", "testing"])
def test_the_reference_has_every_public_name(site: Path, module: str) -> None:
    page = text_of(site / "reference" / "api" / f"{module}.html")
    public = importlib.import_module(f"penstock.{module}").__all__
    assert [name for name in public if f'id="penstock.{module}.{name}"' not in page] == []


def test_the_reference_has_every_method_of_the_administration(site: Path) -> None:
    page = text_of(site / "reference" / "api" / "admin.html")
    parts = [type(part) for name, part in vars(Admin("127.0.0.1:9876")).items() if not name.startswith("_")]
    assert len(parts) == 5
    for part in parts:
        methods = [name for name, _ in inspect.getmembers(part, inspect.isfunction) if not name.startswith("_")]
        missing = [name for name in methods if f'id="{part.__module__}.{part.__name__}.{name}"' not in page]
        assert methods
        assert missing == []


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r'<(?:script|img|iframe)\b[^>]*\bsrc="?(https?:[^" >]+)|<link\b[^>]*\bhref="?(https?:[^" >]+)')
    for page in site.rglob("*.html"):
        assert fetched.findall(text_of(page)) == [], page
