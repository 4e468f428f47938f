"""Every Python block and every shell block in the README and the documents runs as printed, page by page, in order.

Blocks marked `python` need nothing but Penstock. Those marked `py` need a Spark session: tests/spark runs the pages
that have such, or commands that start Spark. On other pages, the lines of blocks marked `sh` are commands, and all of
them end well; where no block makes the store that they look into, `data/store` is a small one. The commands of README
and quickstart are run by tests/newcomer.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from docs.pages import PAGES, name_of

from penstock.cli.main import main
from penstock.store import Message, MessageStore, Settings

NEWCOMERS = ("README.md", "README.zh.md", "quickstart.md")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.M | re.S)


def blocks_of(page: Path) -> list[tuple[str, str]]:
    text = page.read_text(encoding="utf-8")
    on_spark = "\n```py\n" in text or "\npenstock pipeline" in "".join(block for _, block in BLOCK.findall(text))
    elsewhere = on_spark or page.name in NEWCOMERS
    return [(kind, block) for kind, block in BLOCK.findall(text) if kind == "python" or not elsewhere]


WITH_BLOCKS = [page for page in PAGES if blocks_of(page)]


def make_store() -> None:
    with MessageStore.open("data/store", Settings.dev()) as store:
        for number in range(4):
            assert store.put(Message("orders", b"two shirts", keys=(f"order_{number}",), tags="paid")).ok


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_the_blocks_of_a_page_run_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)
    if any(kind == "sh" for kind, _ in blocks) and not any(kind == "python" for kind, _ in blocks):
        make_store()
    for number, (kind, block) in enumerate(blocks):
        if kind == "python":
            exec(compile(block, f"{page.name}-{number}", "exec"), {"__name__": "block"})  # the documents are ours
            continue
        for line in block.splitlines():
            words = shlex.split(line)
            if words[0] == "penstock":
                assert main(words[1:]) == 0, line
            else:
                subprocess.run(words, check=True, timeout=60)


def test_there_are_pages_with_blocks_of_both_kinds() -> None:
    kinds = {kind for page in WITH_BLOCKS for kind, _ in blocks_of(page)}
    assert kinds == {"python", "sh"}
    assert len(WITH_BLOCKS) >= 10
