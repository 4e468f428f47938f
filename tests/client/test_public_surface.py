"""What the client offers is what its reference page describes."""

from __future__ import annotations

import re

from support import ROOT

import penstock.client
import penstock.testing
from penstock.client import sync

PAGE = (ROOT / "docs" / "reference" / "client.md").read_text(encoding="utf-8")


def test_everything_that_is_exported_exists_and_is_on_the_page() -> None:
    for name in penstock.client.__all__:
        assert getattr(penstock.client, name)
        assert re.search(rf"`{name}\b", PAGE), name


def test_the_plain_clients_have_the_same_names() -> None:
    for name in sync.__all__:
        assert getattr(sync, name)
        assert name in penstock.client.__all__


def test_what_is_for_tests_is_on_the_page_too() -> None:
    for name in penstock.testing.__all__:
        assert getattr(penstock.testing, name)
    assert "penstock.testing.broker" in PAGE
