"""The pages, one module each; `add_pages` has NiceGUI know them. They read through `Console` and show text as text."""

from __future__ import annotations

from fastapi import FastAPI

from penstock.console.pages import api_page, dead_letters, groups, messages, overview, pipeline, store, topics
from penstock.console.parts import Console


def add_pages(console: Console, app: FastAPI) -> None:
    """Registers all pages."""
    for page in (overview, topics, groups, messages, dead_letters, store, pipeline):
        page.add(console)
    api_page.add(console, app)
