"""Verbs as child processes: how far they are, what comes out, and that none is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.console.jobs import FORMS, MAX_RUNNING, Jobs, JobState, arguments_of, folder_of
from penstock.errors import BadRequest, PenstockError


def jobs(program: str) -> Jobs:
    return Jobs([sys.executable, "-c", program])


def test_a_job_tells_its_share_and_what_it_found() -> None:
    async def act() -> None:
        program = (
            "import sys\n"
            "print('penstock: usage: 40 % of 10 tasks, about 3 s left …', file=sys.stderr)\n"
            "print('{\"found\": 1}')\nprint('no json')\nprint('[2]')\n"
            "print(sys.argv[1:], file=sys.stderr)\nsys.exit(1)\n"
        )
        running = jobs(program)
        job = running.start("usage", ["--store=x"])
        await running.wait(job)
        assert (job.state, job.status, job.share) == (JobState.DONE, 1, 100)
        assert job.results == [{"found": 1}, [2]]
        assert job.said[0].startswith("usage: 40 %")
        assert job.said[1] == "['pipeline', 'usage', '--store=x', '--json']"

    asyncio.run(act())


def test_a_job_that_cannot_be_run_has_failed_and_says_why() -> None:
    async def act() -> None:
        running = jobs("import sys; print('penstock: no such store.', file=sys.stderr); sys.exit(2)")
        job = running.start("verify", [])
        await running.wait(job)
        assert (job.state, list(job.said)) == (JobState.FAILED, ["no such store."])
        with pytest.raises(PenstockError, match="no such store"):
            await running.ask("store", "info")

    asyncio.run(act())


def test_a_cancelled_job_takes_its_children_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    program = (
        "import os, subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"new = pathlib.Path({str(note)!r} + '.new'); new.write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        f"new.rename({str(note)!r})\n"
        "time.sleep(600)\n"
    )

    async def act() -> None:
        running = jobs(program)
        job = running.start("search", [])
        while not note.exists():
            await asyncio.sleep(0.01)
        await running.close()
        assert job.state is JobState.CANCELLED

    asyncio.run(act())
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in map(int, note.read_text().split())):
        assert time.monotonic() < deadline, "a child is left"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process still runs; one that is dead and only waits to be noticed does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_only_so_many_run_at_once() -> None:
    async def act() -> None:
        running = jobs("import time; time.sleep(600)")
        for _ in range(MAX_RUNNING):
            running.start("usage", [])
        with pytest.raises(BadRequest, match="jobs run already"):
            running.start("usage", [])
        await asyncio.sleep(0)
        await running.close()

    asyncio.run(act())


def test_what_a_verb_answers_is_read() -> None:
    document = {"path": "x"}
    assert asyncio.run(jobs(f"print({json.dumps(json.dumps(document))})").ask("store", "info")) == document


def test_a_value_can_never_be_an_option() -> None:
    assert arguments_of("search", {"text": "--store=/etc", "key": "a\n\n--b"}) == [
        "--text=--store=/etc",
        "--key=a",
        "--key=--b",
    ]
    with pytest.raises(BadRequest):
        arguments_of("search", {"text": "a\0b"})
    with pytest.raises(BadRequest, match="takes no 'html'"):
        arguments_of("usage", {"html": "page.html"})
    with pytest.raises(BadRequest, match="one of parquet, json"):
        arguments_of("export", {"format": "../x"})
    assert arguments_of("rebuild", {"dry-run": "true", "topic": "orders"}) == ["--dry-run", "--topic=orders"]
    assert arguments_of("rebuild", {"dry-run": "false"}) == []


def test_an_export_stays_among_the_exports(tmp_path: Path) -> None:
    assert folder_of(tmp_path, "orders-2026") == tmp_path / "orders-2026"
    for name in ("../elsewhere", "a/b", "", ".hidden", "-x", "a" * 65):
        with pytest.raises(BadRequest, match="folder's name"):
            folder_of(tmp_path, name)
    with pytest.raises(BadRequest, match="--exports DIR"):
        folder_of(None, "orders")


@pytest.mark.parametrize("verb", FORMS)
def test_every_field_is_an_option_of_its_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", verb, "--help"]) == 0
    options = set(re.findall(r"--([a-z-]+)", capsys.readouterr().out))
    assert {field.name for field in FORMS[verb].fields} | {"store", "json", "conf", "master"} <= options
