"""What the pages show of commands is true: their verbs exist, and so do the options that stand behind them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.test_help import VERBS
from support.documents import PAGES, name_of

WORDS = re.compile(r"penstock((?: [a-z][a-z-]*)+)([^`\n]*)")


def shown(text: str) -> list[tuple[str, list[str]]]:
    """(verb, options behind it) of all commands on a page: in blocks, and within backticks."""
    lines = [line for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.lstrip().startswith("penstock ")]
    lines += re.findall(r"`(penstock [^`\n]+)`", text)
    found = []
    for line in lines:
        match = WORDS.match(line.strip())
        if match is not None:
            found.append((match[1].strip(), re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", match[2].partition("  #")[0])))
    return found


def wrong(verb: str, options: list[str]) -> str:
    """What is not so; empty if all is."""
    words = verb.split()
    known = next((" ".join(words[:n]) for n in range(len(words), 0, -1) if " ".join(words[:n]) in VERBS), "")
    if not known:
        is_group = any(each.startswith(f"{words[0]} ") for each in VERBS)
        return "" if is_group and len(words) == 1 else f"there is no verb `penstock {verb}`"
    there = {name for option in VERBS[known].params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    lacks = [option for option in options if option not in there]
    return f"`penstock {known}` has no {', '.join(lacks)}" if lacks else ""


@pytest.mark.parametrize("page", [page for page in PAGES if shown(page.read_text(encoding="utf-8"))], ids=name_of)
def test_the_verbs_and_options_on_a_page_exist(page: Path) -> None:
    found = [wrong(*each) for each in shown(page.read_text(encoding="utf-8"))]
    assert [each for each in found if each] == []


def test_a_verb_or_an_option_that_does_not_exist_would_be_noticed() -> None:
    text = "`penstock store verfy DIR`, `penstock serve --lisen 1`\n```\npenstock store verify DIR [--no-crc]\n```\n"
    assert [wrong(*each) for each in shown(text)] == [
        "",
        "there is no verb `penstock store verfy`",
        "`penstock serve` has no --lisen",
    ]
