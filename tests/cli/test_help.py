"""Every verb there is has a help that says what it does and shows how it is called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from penstock.cli import main as command
from penstock.cli.lazy_verbs import EVERYTHING


def verbs(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(found, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from verbs(inner, (*path, name))
        elif not inner.hidden:
            yield " ".join((*path, name)), inner


VERBS = dict(sorted(verbs(typer.main.get_command(command.make_app(EVERYTHING)))))


def test_all_groups_are_among_them() -> None:
    assert {verb.split()[0] for verb in VERBS} >= {"serve", "demo", "store", "pipeline", "topic", "cluster"}
    assert len(VERBS) > 50


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_says_what_it_does_and_shows_a_call(verb: str) -> None:
    found = VERBS[verb]
    about, _, rest = found.get_help(typer.Context(found, info_name=f"penstock {verb}")).partition("Examples:")
    assert re.search(r"\n\n  [A-Z][^.:]{10,}[.:]", about), "a sentence about what it does"
    assert f"penstock {verb}" in rest.partition("Options:")[0], "a call of the verb itself"
