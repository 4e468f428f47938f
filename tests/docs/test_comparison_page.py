"""What the comparison says about Penstock is there: each verb with its options, each name of the client."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer.main
from support.documents import DOCS

from penstock import client, errors, testing
from penstock.cli.main import make_app

PAGE = (DOCS / "explanation" / "comparison.md").read_text(encoding="utf-8")


def own_words(title: str) -> list[str]:
    """What is in code in Penstock's column of the table below a title."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row[2])]


VERBS = [word for word in own_words("Command line") if re.match(r"[a-z]+( |$)", word)]
NAMES = [word for word in own_words("Python client") if re.match(r"[A-Z]\w+(\.\w+)?$", word)]
ELSEWHERE = {"body_text", "mqadmin"}


def test_the_page_has_lines_to_check() -> None:
    assert len(VERBS) > 25
    assert len(NAMES) > 25


@pytest.mark.parametrize("words", [word for word in VERBS if word not in ELSEWHERE])
def test_a_verb_and_its_options_exist(words: str) -> None:
    command: Any = typer.main.get_command(make_app(words.split()))
    for word in words.split():
        if word.startswith("-"):
            assert any(word in parameter.opts for parameter in command.params), f"{words}: no option {word}"
        else:
            assert word in getattr(command, "commands", {}), f"{words}: no verb {word}"
            command = command.commands[word]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_client_exists(name: str) -> None:
    owner, _, attribute = name.partition(".")
    assert owner in client.__all__ or hasattr(errors, owner)
    kind = getattr(client, owner, None) or getattr(errors, owner)
    assert not attribute or attribute in {*dir(kind), *getattr(kind, "__annotations__", ())}


def test_the_broker_for_tests_exists() -> None:
    assert "penstock.testing.broker" in own_words("Python client")
    assert "broker" in testing.__all__
