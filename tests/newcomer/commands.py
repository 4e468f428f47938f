"""What a page tells a newcomer to type, and what it says will be seen.

A block marked `sh` is typed, line by line; a block marked `python` is run; the lines of a block marked `text` right
after a block of commands are found in what those printed, in that order. `…` stands for anything within a line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```", re.M | re.S)


class Block(NamedTuple):
    """Something to run, and what must be seen then."""

    kind: str
    text: str
    promised: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.strip()]


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "text":
            found[-1] = found[-1]._replace(promised=tuple(text.splitlines()))
        else:
            found.append(Block(kind, text))
    return found


def missing(promised: tuple[str, ...], printed: str) -> str:
    """The first promised line that was not printed where it should be; empty if all were."""
    lines = iter(printed.splitlines())
    for promise in promised:
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in promise.split("…")))
        if not any(pattern.search(line) for line in lines):
            return promise
    return ""
