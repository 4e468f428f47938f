"""Every block of the README and the documents is run by a test, or says why it cannot be; most of them are run here.

Blocks marked `python` and `sh` need nothing but Penstock: they run as printed, page by page, in order. Those marked
`py` and `bash` need Spark, and are run by tests/spark. Where no block makes the store that commands look into,
there is a small one. The commands of README and quickstart are run by tests/newcomer.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from docs.test_coverage_page import EXISTING
from support.documents import (
    BLOCKS,
    EXCUSES,
    ONLY_LOOKED_AT,
    PAGE_BY_PAGE,
    PAGES,
    ROOT,
    RUN_BY,
    Block,
    Reader,
    blocks_of,
    name_of,
)
from support.loopback import make_authority

from penstock.store import Message, MessageStore, Settings

COMMAND = re.compile(r"\s*(\$ |penstock |make |pip |python3? |\.venv/|docker |spark-|systemctl |[A-Z_]+=\S+ \S)")


def run_here(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.is_run and block.run_by == PAGE_BY_PAGE]


def make_stores(folder: Path, blocks: list[Block]) -> None:
    """The stores that the commands expect to be there, and the settings of their broker."""
    commands = "".join(block.text for block in blocks if block.kind == "sh")
    for name in ("data/store", "data/rocketmq/store"):
        if re.search(rf"[ /]{name}\b", commands):
            with MessageStore.open(folder / name, Settings.dev()) as store:
                for number in range(8):
                    message = Message("orders", b"two shirts", f"order_{number}", tags="paid", queue_id=number % 4)
                    assert store.put(message).ok
    (folder / "broker.conf").write_text("fileReservedTime=48\n", encoding="utf-8")
    if any("ca.pem" in block.text for block in blocks):
        make_authority(folder, "ca")


def run_python(block: Block, folder: Path) -> None:
    if re.search(
        r"^def test_", block.text, re.M
    ):  # a test, so pytest runs it, with the fixtures that come with Penstock
        file = folder / f"test_line_{block.line}.py"
        file.write_text(block.text, encoding="utf-8")
        order = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
        done = subprocess.run(order, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout
        assert "1 passed" in done.stdout
    else:
        exec(compile(block.text, block.place, "exec"), {"__name__": "block"})  # the documents are ours


def pages() -> list[object]:
    """Those with blocks to run here; those that start processes of their own are not in `make test`."""
    found: list[object] = []
    for page in PAGES:
        text = "".join(block.text for block in run_here(page))
        takes_long = re.search(r"^penstock (serve|namesrv|console)|^def test_", text, re.M)
        if text:
            found.append(pytest.param(page, marks=[pytest.mark.slow] if takes_long else []))
    return found


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_the_blocks_of_a_page_run_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    blocks = run_here(page)
    make_stores(tmp_path, blocks)
    with Reader(tmp_path) as reader:
        for block in blocks:
            if block.kind == "python":
                run_python(block, tmp_path)
            elif block.kind == "ini":
                reader.write(block.text)
            else:
                for line in block.text.replace("\\\n", "").splitlines():
                    reader.type(line)


def unrun(block: Block) -> str:
    """What is wrong with a block that no test runs; empty if nothing is."""
    if block.kind in ONLY_LOOKED_AT:
        commands = [line for line in block.text.splitlines() if COMMAND.match(line) and not is_synopsis(line)]
        return f"{block.place}: mark it `sh`, it has a command in it: {commands[0]}" if commands else ""
    if block.excuse:
        return "" if block.excuse.startswith(EXCUSES) else f"{block.place}: '{block.excuse}' is no excuse"
    file, _, name = block.run_by.partition("::")
    if not file:
        return f"{block.place}: no test runs this block, and no comment says why"
    return "" if name in EXISTING.get(file, ()) else f"{block.place}: there is no test {block.run_by}"


def is_synopsis(line: str) -> bool:
    """`penstock store verify DIR [--json]`; whether its verb and options are true is asked in tests/cli."""
    return re.search(r"[\[|(]|\b[A-Z]{3,}\b", line) is not None and line.lstrip().startswith("penstock ")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_every_block_is_run_by_a_test_or_says_why_not(page: Path) -> None:
    assert [wrong for block in blocks_of(page) if (wrong := unrun(block))] == []


def test_what_runs_no_block_any_more_is_not_listed() -> None:
    there = {(name_of(block.page), block.kind) for block in BLOCKS if block.is_run}
    assert RUN_BY.keys() <= there


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```rust\nlet x = 1;\n```\n", "no test runs this block, and no comment says why"),
        ("```\npenstock store info data/store\n```\n", "mark it `sh`, it has a command in it"),
        ("```text\nmake run\n```\n", "mark it `sh`, it has a command in it"),
        ("<!-- not run: it does not work -->\n```sh\nfalse\n```\n", "'it does not work' is no excuse"),
        ("<!-- not run: needs Docker -->\n```sh\ndocker build .\n```\n", ""),
        ("```\npenstock store verify DIR [--json]\n```\n", ""),
        ("   ```sh\n   penstock store info data/store\n   ```\n", ""),
    ],
)
def test_a_block_that_nobody_runs_would_be_noticed(text: str, wrong: str) -> None:
    (block,) = blocks_of(ROOT / "docs" / "index.md", text)
    found = unrun(block)
    assert wrong in found if wrong else found == ""


def test_no_fence_is_overlooked() -> None:
    for page in PAGES:
        fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("```")]
        assert len(fences) == 2 * len(blocks_of(page)), name_of(page)


def test_the_extras_that_pages_name_exist() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for page in PAGES:
        named = re.findall(r"penstock\[([a-z,]+)\]", page.read_text(encoding="utf-8"))
        assert {extra for extras in named for extra in extras.split(",")} <= known.keys(), name_of(page)
