"""The console's pages, one module each. Pages read through `Console`. They show untrusted text as text, never as
markup.
"""

from __future__ import annotations

from fastapi import FastAPI

from penstock.console.console import Console
from penstock.console.pages import dead_letters, groups, messages, openapi, overview, pipeline, store, topics


def add_pages(console: Console, app: FastAPI) -> None:
    """Registers all pages with NiceGUI."""
    for page in (overview, topics, groups, messages, dead_letters, store, pipeline):
        page.add(console)
    openapi.add(console, app)
