"""Verbs as child processes: how far they are, what comes out, and that none is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.console.job_forms import FORMS, arguments_of, folder_of
from penstock.console.job_processes import MAX_RUNNING, Jobs, JobState
from penstock.errors import BadRequest, PenstockError

WORKER = """
import json, os, pathlib, subprocess, sys, time
from penstock.console.job_worker import serve_jobs

class Runner:
    def run(self, arguments):
        {run}
    def stays(self):
        return {stays}
    def close(self):
        {close}

serve_jobs(Runner())
"""


def jobs(run: str, stays: str = "False", close: str = "pass", keep_s: float = 600) -> Jobs:
    """Jobs whose process does this: Python code."""
    run = "\n        ".join(run.splitlines())
    return Jobs(worker=[sys.executable, "-c", WORKER.format(run=run, stays=stays, close=close)], keep_s=keep_s)


def verbs(program: str) -> Jobs:
    """Read-only verbs that are this program."""
    return Jobs([sys.executable, "-c", program])


def test_a_job_tells_its_share_and_what_it_found() -> None:
    async def act() -> None:
        program = (
            "print('penstock: usage: in this process, without Spark (3 B of log)', file=sys.stderr)\n"
            "print('penstock: usage: 40 % of 10 tasks, about 3 s left …', file=sys.stderr)\n"
            "print('{\"found\": 1}')\nprint('no json')\nprint('[2]')\n"
            "print(arguments, file=sys.stderr)\n"
            "return 1\n"
        )
        running = jobs(program)
        job = running.start("usage", ["usage", "x", "--json"])
        await running.wait(job)
        assert (job.state, job.status, job.share) == (JobState.DONE, 1, 100)
        assert job.results == [{"found": 1}, [2]]
        assert job.way == "without Spark (3 B of log)"
        assert list(job.log)[1:] == [
            "usage: 40 % of 10 tasks, about 3 s left …",
            "['usage', 'x', '--json']",
        ]

    asyncio.run(act())


def test_what_java_prints_is_in_the_log_and_not_in_the_results() -> None:
    async def act() -> None:
        running = jobs("os.write(1, b'from Java\\n')\nprint(len(sys.stdin.read()))\nreturn 0", stays="True")
        job = running.start("usage", [])
        await running.wait(job)
        assert job.results == [0]
        await running.close()
        again = jobs("os.write(2, b'Fatal error\\n')\nos._exit(9)")
        job = again.start("usage", [])
        await again.wait(job)
        assert list(job.log) == ["Fatal error", "the job's process ended with status 9"]

    asyncio.run(act())


def test_a_job_that_cannot_be_run_has_failed_and_says_why() -> None:
    async def act() -> None:
        running = jobs("print('penstock: no such store.', file=sys.stderr)\nreturn 2")
        job = running.start("verify", [])
        await running.wait(job)
        assert (job.state, job.status, list(job.log)) == (JobState.FAILED, 2, ["no such store."])
        failing = "import sys; print('penstock: no such store.', file=sys.stderr); sys.exit(2)"
        with pytest.raises(PenstockError, match="no such store"):
            await verbs(failing).run_json("store", "info")

    asyncio.run(act())


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("raise ValueError('a bug')", "ValueError: a bug"),
        ("os.kill(os.getpid(), 9)", "the job's process ended with signal 9 (Killed)"),
    ],
)
def test_a_job_that_breaks_its_process_has_failed_and_the_next_one_gets_another(run: str, said: str) -> None:
    async def in_turn() -> None:
        running = jobs(f"if 'break' in arguments:\n    {run}\nprint(os.getpid())\nreturn 0", stays="True")
        ended = []
        for arguments in (["a"], ["break"], ["b"]):
            ended.append(running.start("usage", arguments))
            await running.wait(ended[-1])
        first, broken, last = ended
        assert [job.state for job in ended] == [JobState.DONE, JobState.FAILED, JobState.DONE]
        assert broken.log[-1] == said
        assert broken.results == []
        assert first.results != last.results
        await running.close()

    asyncio.run(in_turn())


def test_a_cancelled_job_takes_its_children_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pids"

    async def act() -> None:
        running = jobs(with_a_child(note))
        job = running.start("search", [])
        while not note.exists():
            await asyncio.sleep(0.01)
        await running.close()
        assert job.state is JobState.CANCELLED

    asyncio.run(act())
    until_gone(*map(int, note.read_text().split()))


def with_a_child(note: Path) -> str:
    """A job that never ends, and has a child; `note` gets both of their ids."""
    return (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"new = pathlib.Path({str(note)!r} + '.new'); new.write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        f"new.rename({str(note)!r})\n"
        "time.sleep(600)\n"
    )


def until_gone(*pids: int) -> None:
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process is left"
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
        running = jobs("time.sleep(600)")
        for _ in range(MAX_RUNNING):
            running.start("usage", [])
        with pytest.raises(BadRequest, match="jobs are running"):
            running.start("usage", [])
        await asyncio.sleep(0)
        await running.close()

    asyncio.run(act())


# -- the process that stays ------------------------------------------------------------------------------------------

WITH_PID = "print(os.getpid())\nreturn 0"


async def pid_of_next(running: Jobs) -> int:
    """Runs a job that prints the id of its process."""
    job = running.start("usage", [])
    await running.wait(job)
    assert job.state is JobState.DONE, job.log
    [pid] = job.results
    return int(pid)


def test_a_process_that_stays_takes_the_next_job_and_ends_with_the_console(tmp_path: Path) -> None:
    note = tmp_path / "closed"

    async def act() -> None:
        running = jobs(WITH_PID, stays="True", close=f"pathlib.Path({str(note)!r}).touch()")
        first = await pid_of_next(running)
        assert await pid_of_next(running) == first
        assert alive(first)
        await running.close()
        assert not alive(first)

    asyncio.run(act())
    assert note.exists()


def test_a_process_that_need_not_stay_ends_with_its_job() -> None:
    async def act() -> None:
        for running in (jobs(WITH_PID, stays="False"), jobs(WITH_PID, stays="True", keep_s=0)):
            first = await pid_of_next(running)
            assert not alive(first)
            assert await pid_of_next(running) != first
            await running.close()

    asyncio.run(act())


def test_only_one_process_stays() -> None:
    async def act() -> None:
        running = jobs(WITH_PID, stays="True")
        both = [running.start("usage", []) for _ in range(MAX_RUNNING)]
        for job in both:
            await running.wait(job)
        assert sum(alive(job.results[0]) for job in both) == 1
        await running.close()
        assert not any(alive(job.results[0]) for job in both)

    asyncio.run(act())


def test_a_process_that_stayed_ends_when_its_time_is_over() -> None:
    async def act() -> None:
        running = jobs(WITH_PID, stays="True", keep_s=0.01)
        first = await pid_of_next(running)
        while alive(first):
            await asyncio.sleep(0.01)
        assert await pid_of_next(running) != first
        await running.close()

    asyncio.run(act())


def test_a_job_gets_a_new_process_if_the_one_that_stayed_is_dead_or_of_no_use(tmp_path: Path) -> None:
    unfit = tmp_path / "unfit"

    async def act() -> None:
        running = jobs(WITH_PID, stays=f"not os.path.exists({str(unfit)!r})")
        first = await pid_of_next(running)
        os.kill(first, signal.SIGKILL)
        second = await pid_of_next(running)
        assert second != first
        unfit.touch()  # as if its Java were dead
        assert await pid_of_next(running) != second
        await running.close()

    asyncio.run(act())


@pytest.mark.parametrize("is_busy", [False, True])
def test_no_process_outlives_a_console_that_is_killed(is_busy: bool, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    run = with_a_child(note) if is_busy else f"{WITH_PID}"
    worker = WORKER.format(run="\n        ".join(run.splitlines()), stays="True", close="pass")
    console = (
        "import asyncio, sys\n"
        "from penstock.console.job_processes import Jobs\n"
        "async def act():\n"
        f"    running = Jobs(worker=[sys.executable, '-c', {worker!r}], keep_s=600)\n"
        "    job = running.start('usage', [])\n"
        "    await running.wait(job)\n"
        "    print(job.results[0], flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(act())\n"
    )
    with subprocess.Popen([sys.executable, "-c", console], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if is_busy:
            deadline = time.monotonic() + 60
            while not note.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            pids = [int(each) for each in note.read_text().split()]
        else:
            pids = [int(process.stdout.readline())]
        process.kill()
    until_gone(*pids)


# -- verbs and forms -------------------------------------------------------------------------------------------------


def test_what_a_verb_answers_is_read() -> None:
    document = {"path": "x"}
    assert asyncio.run(verbs(f"print({json.dumps(json.dumps(document))})").run_json("store", "info")) == document


def test_a_value_can_never_be_an_option() -> None:
    assert arguments_of("search", {"text": "--store=/etc", "key": "a\n\n--b"}) == [
        "--text=--store=/etc",
        "--key=a",
        "--key=--b",
    ]
    with pytest.raises(BadRequest):
        arguments_of("search", {"text": "a\0b"})
    with pytest.raises(BadRequest, match="has no field 'html'"):
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
    fields = {field.name for field in FORMS[verb].fields}
    assert main([verb, "--help"]) == 0
    options = set(re.findall(r"--([a-z-]+)", capsys.readouterr().out))
    assert fields | {"json", "conf", "master", "config"} <= options
    if FORMS[verb].over_network:
        assert main(["pipeline", verb, "--help"]) == 0
        options = set(re.findall(r"--([a-z-]+)", capsys.readouterr().out))
        assert fields | {"json", "conf", "master", "namesrv"} <= options
