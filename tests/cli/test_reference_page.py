"""The reference page names every verb, option and field that there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli.conftest import all_verbs
from support import ROOT

if TYPE_CHECKING:
    from cli.conftest import Filled, Run

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
SECTIONS = {title.strip("`"): text for title, text in re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", PAGE, re.M)}
CALLS = [
    ["demo"],
    ["serve"],
    ["namesrv"],
    ["console"],
    ["doctor"],
    *([verb] for verb in ("verify", "usage", "search", "lag", "diff", "rebuild", "export")),
    ["store", "search"],
    ["store", "recover"],
    ["store", "repair"],
    ["store", "rebuild"],
    *(["store", verb] for verb in all_verbs(Path())),
]


def section(title: str) -> str:
    return next(text + name for name, text in SECTIONS.items() if name.startswith(title))


@pytest.mark.parametrize("call", CALLS)
def test_every_verb_and_option_is_on_the_page(run: Run, call: list[str]) -> None:
    about = section(f"penstock {' '.join(call)}") + section("What all") + section("What the short verbs")
    for option in re.findall(r"^  (--[a-z-]+)", run(*call, "--help").done().out, re.M):
        assert option == "--help" or f"`{option}" in about or f" {option} " in f"{about} ", option


def test_the_fields_of_a_message_are_on_the_page_in_their_order(run: Run, filled: Filled) -> None:
    fields = list(run("store", "dump", filled.path, "--json").done().objects[0])
    rows = re.findall(r"^\| (`.*?) \|", section("A message"), re.M)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == fields


def test_the_fields_of_info_are_on_the_page(run: Run, filled: Filled) -> None:
    about = section("penstock store info")
    found: dict[str, Any] = run("store", "info", filled.path, "--json").done().json
    for field in (*found, *found["commit_log"], *found["recovery"], *found["checkpoint"]):
        assert f"`{field}`" in about, field
