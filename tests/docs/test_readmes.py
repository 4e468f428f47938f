"""The READMEs' first screen, pictures and list of documents; their first programs, and the quickstart's, work.

That both READMEs say the same is asked in test_translations.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import DOCS, ROOT, blocks_of, links_of
from support.stores import eventually

import penstock.testing

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
LONGEST = 120


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def pictures_of(text: str) -> list[str]:
    return re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("page", [ENGLISH, DOCS / "quickstart.md"], ids=["README", "quickstart"])
def test_producer_and_consumer_work_against_the_printed_address(page: Path) -> None:
    producer, consumer = [block.text for block in blocks_of(page) if block.kind == "python"][:2]
    for program in (producer, consumer):
        assert len([line for line in program.splitlines() if line]) <= 6
    with penstock.testing.broker() as broker:
        sent, received = (
            [sys.executable, "-c", text.replace("127.0.0.1:9876", broker.namesrv)] for text in (producer, consumer)
        )
        assert subprocess.check_output(sent, text=True, timeout=60).startswith("SEND_OK ")
        with subprocess.Popen(received, stdout=subprocess.PIPE, text=True) as consuming:
            assert consuming.stdout is not None
            assert consuming.stdout.readline() == "consumed paid two shirts\n"
            eventually(lambda: catches(consuming.pid, signal.SIGTERM), "the consumer runs")
            consuming.send_signal(signal.SIGINT)
            assert consuming.wait(60) == 0


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_the_first_screen_says_what_it_is_and_for_whom_and_shows_it(page: Path) -> None:
    first = "\n".join(text_of(page).splitlines()[:12])
    assert pictures_of(first) == ["docs/images/overview.png"]
    assert len(re.findall(r"[.。](?=[\s*])", first.partition("![")[0])) == 2, "one sentence each"


def test_a_query_and_a_page_of_usage_are_among_the_pictures() -> None:
    found = pictures_of(text_of(ENGLISH))
    assert {"docs/images/query.svg", "docs/images/usage-page.png"} <= set(found)
    for picture in found:
        assert (ROOT / picture).is_file()


def test_the_readme_leads_to_every_how_to() -> None:
    linked = {link.path for link in links_of(text_of(ENGLISH))}
    assert {f"docs/how-to/{path.name}" for path in (DOCS / "how-to").iterdir()} <= linked


def test_the_quickstart_goes_the_way_of_the_readme() -> None:
    """It types the same programs, in the same order, before what it adds."""

    def steps(page: Path) -> list[int]:
        text = text_of(page)
        marks = ("make run", "with Producer(", "consumer.run()", "(penstock_broker)", "make setup", "spark.read")
        return [text.index(mark) for mark in (*marks, "MessageStore.open(", "penstock store info")]

    for page in (ENGLISH, DOCS / "quickstart.md"):
        assert steps(page) == sorted(steps(page))


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_lines_are_not_too_long_to_be_read_as_text(page: Path) -> None:
    too_long = [
        line
        for line in text_of(page).splitlines()
        if len(line) > LONGEST and not line.startswith(("|", "![")) and "](" not in line
    ]
    assert too_long == []


@pytest.mark.parametrize("page", [ENGLISH, CHINESE, DOCS / "quickstart.md", DOCS / "zh" / "quickstart.md"])
def test_sparks_shell_is_started_in_the_activated_environment(page: Path) -> None:
    """Spark's own scripts look for PySpark with the first `python3` of the PATH, wherever they lie."""
    assert ".venv/bin/pyspark" not in text_of(page)
    assert ". .venv/bin/activate" in text_of(page)


def test_sparks_shell_starts_there() -> None:
    environment = Path(sys.executable).parent
    started = subprocess.run(
        ["bash", "-c", f'PATH="{environment}:$PATH"; pyspark --version'], capture_output=True, text=True, check=False
    )
    assert "version 4." in started.stdout + started.stderr, "what activate does is enough"
