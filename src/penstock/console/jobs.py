"""Which jobs of the pipeline people can start here, with what, and the options that this comes to.

A value is always joined to its option by `=`, so that no value can be taken for an option of its own. Where the
messages are is said when the console is started, never by whoever starts a job.


Verbs of `penstock` as child processes: the pipeline's jobs, and looks into a store that is on this machine.

A job's process is in a session of its own and is ended with all its children when it is cancelled or the console ends,
so that no Spark stays behind. What it writes to stdout is kept up to a limit, what it says on stderr by its last lines;
the share that is done comes from those. Nothing survives the console. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from penstock.errors import BadRequest, PenstockError


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that a person may fill in."""

    name: str
    label: str
    choices: tuple[str, ...] = ()
    repeats: bool = False
    """Whether several, one a line, are several options."""
    is_switch: bool = False
    """Whether it is there or not, without a value."""


@dataclass(frozen=True, slots=True)
class JobForm:
    """One verb of `penstock pipeline`."""

    verb: str
    title: str
    about: str
    fields: tuple[Field, ...] = ()
    over_network: bool = False
    """Whether it can also read from a cluster, where there is no store on this machine."""
    asks: str = ""
    """What a person is asked before it starts, of one that changes the store."""


_SINCE: Final = Field("since", "Stored at or after, such as 2026-11-16T08:00")
_UNTIL: Final = Field("until", "Stored before")
FORMS: Final = {
    form.verb: form
    for form in (
        JobForm("usage", "Usage", "Who fills the disk: by topic, queue, tag, producer, day and hour."),
        JobForm("verify", "Verify", "Checks every record, queue unit, key and config file. Changes nothing."),
        JobForm(
            "search",
            "Search",
            "Finds messages by what they hold. All that is given must hold.",
            (
                Field("topic", "Topic"),
                Field("key", "Keys, one a line: any of them", repeats=True),
                Field("id", "Message id"),
                Field("text", "Text in the body"),
                Field("regex", "Regular expression in the body"),
                Field("json-path", "JSON, such as order.id=7, one a line", repeats=True),
                Field("property", "Properties, NAME=VALUE, one a line", repeats=True),
                Field("tag", "Tag"),
                _SINCE,
                _UNTIL,
                Field("limit", "Most to show"),
            ),
            over_network=True,
        ),
        JobForm(
            "export",
            "Export",
            "Writes messages to files by topic and day; the next time into the same folder, what came since.",
            (
                Field("topic", "Topics, one a line; all if there is none", repeats=True),
                Field("format", "Format", choices=("parquet", "json")),
                Field("decode", "Decode bodies", choices=("text", "json")),
                _SINCE,
                Field("once", "What is there now, once", is_switch=True),
            ),
            over_network=True,
        ),
        JobForm(
            "rebuild",
            "Rebuild",
            "Builds queues and index anew from the log. The broker must not run; the old ones are kept aside.",
            (
                Field("topic", "Only this topic"),
                Field("queue", "Only this queue"),
                Field("dry-run", "Only say what would be done", is_switch=True),
            ),
            asks="Queues and index of the store are replaced when the new ones are complete and checked.",
        ),
    )
}
EXPORT_FOLDER: Final = "folder"
"""The field of an export that names its folder, among all exports."""
_FOLDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LONGEST: Final = 4096


def arguments_of(verb: str, given: Mapping[str, str]) -> list[str]:
    """The options of a verb. Raises BadRequest for a verb or a field that is not one."""
    form = FORMS.get(verb)
    if form is None:
        raise BadRequest(f"there is no job {verb[:40]!r}; there are {', '.join(FORMS)}")
    fields = {field.name: field for field in form.fields}
    made = []
    for name, value in given.items():
        if name not in fields:
            raise BadRequest(f"job {verb} takes no {name[:40]!r}; it takes {', '.join(fields) or 'nothing'}")
        if len(value) > _LONGEST or "\0" in value:
            raise BadRequest(f"{name} is too long, or no text")
        field = fields[name]
        if field.choices and value not in field.choices:
            raise BadRequest(f"{name} is one of {', '.join(field.choices)}, not {value[:40]!r}")
        if field.is_switch:
            made += [f"--{name}"] if value == "true" else []
            continue
        parts = value.splitlines() if field.repeats else [value.strip()]
        made += [f"--{name}={part}" for part in parts if part.strip()]
    return made


def staging_folder(exports: Path | None, name: str) -> Path:
    """Where an export goes: a folder of this name among the exports. Raises BadRequest."""
    if exports is None:
        raise BadRequest("exports have no place yet; start the console with --exports DIR")
    if _FOLDER.fullmatch(name) is None:
        raise BadRequest(f"the folder's name is letters, digits, '_' and '-', not {name[:40]!r}")
    return exports / name


MAX_RUNNING: Final = 2
_MAX_KEPT: Final = 50
_MAX_OUTPUT: Final = 32 << 20
_LINES: Final = 200
_GRACE_S: Final = 5.0
_SHARE: Final = re.compile(r": (\d{1,3}) % of ")
_COMMAND: Final = (sys.executable, "-m", "penstock.cli.main")


class JobState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True, kw_only=True)
class Job:
    """One run of a verb."""

    number: int
    verb: str
    arguments: list[str]
    started_ms: int
    ended_ms: int = 0
    state: JobState = JobState.RUNNING
    status: int | None = None
    """The exit status: 0 done, 1 done and something was found, 2 could not be run."""
    share: int = 0
    """How much is done, in percent."""
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))
    output: str = ""
    is_cut: bool = False

    @property
    def results(self) -> list[Any]:
        """What it wrote, one JSON document a line."""
        found = []
        for line in self.output.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found


class Jobs:
    """The jobs that were started here, newest last."""

    def __init__(self, command: Sequence[str] = _COMMAND) -> None:
        self._command = tuple(command)
        self._numbers = itertools.count(1)
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.all: dict[int, Job] = {}

    def start(self, verb: str, arguments: Sequence[str]) -> Job:
        """Runs `penstock pipeline VERB … --json` from now on. Raises BadRequest if too many run already."""
        running = sum(job.state is JobState.RUNNING for job in self.all.values())
        if running >= MAX_RUNNING:
            raise BadRequest(f"{running} jobs run already; wait for one, or cancel it")
        job = Job(number=next(self._numbers), verb=verb, arguments=list(arguments), started_ms=_now())
        self.all[job.number] = job
        while len(self.all) > _MAX_KEPT:
            ended = (number for number, each in self.all.items() if each.state is not JobState.RUNNING)
            del self.all[next(ended)]
        self._tasks[job.number] = asyncio.create_task(self._run(job, ["pipeline", verb, *arguments, "--json"]))
        return job

    async def wait(self, job: Job) -> None:
        task = self._tasks.get(job.number)
        if task is not None:
            await task

    async def cancel(self, job: Job) -> None:
        """Ends a job that runs; returns when it has ended."""
        if job.state is not JobState.RUNNING:
            return
        job.state = JobState.CANCELLED
        process = self._processes.get(job.number)
        if process is not None:
            await _end(process)
        await self.wait(job)

    async def close(self) -> None:
        """Ends all jobs."""
        for job in [job for job in self.all.values() if job.state is JobState.RUNNING]:
            await self.cancel(job)

    async def ask(self, *arguments: str) -> Any:
        """The JSON document that a verb answers. Raises PenstockError with what it says if it cannot."""
        process = await self._spawn(arguments)
        try:
            output, errors = await process.communicate()
        except asyncio.CancelledError:
            await _end(process)
            raise
        try:
            return json.loads(output)
        except ValueError:
            said = errors.decode("utf-8", "replace").strip().splitlines()
            raise PenstockError(said[-1].removeprefix("penstock: ") if said else "the verb said nothing") from None

    async def _spawn(self, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    async def _run(self, job: Job, arguments: Sequence[str]) -> None:
        try:
            process = self._processes[job.number] = await self._spawn(arguments)
            if job.state is JobState.CANCELLED:  # while it was being started
                await _end(process)
            await asyncio.gather(_read_output(job, process), _read_said(job, process))
            job.status = await process.wait()
        except OSError as error:
            job.said.append(str(error))
        finally:
            self._processes.pop(job.number, None)
            self._tasks.pop(job.number, None)
            job.ended_ms = _now()
            if job.state is JobState.RUNNING:
                job.state = JobState.DONE if job.status in (0, 1) else JobState.FAILED
            if job.state is JobState.DONE:
                job.share = 100


async def _read_output(job: Job, process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    kept = bytearray()
    while part := await process.stdout.read(1 << 16):
        kept += part[: max(0, _MAX_OUTPUT - len(kept))]
        job.is_cut = job.is_cut or len(kept) >= _MAX_OUTPUT
    job.output = kept.decode("utf-8", "replace")


async def _read_said(job: Job, process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    pending = b""
    while part := await process.stderr.read(1 << 14):
        *lines, pending = (pending + part[-(1 << 14) :]).split(b"\n")
        for line in lines:
            _hear(job, line)
    _hear(job, pending)


def _hear(job: Job, line: bytes) -> None:
    text = line.decode("utf-8", "replace").strip().removeprefix("penstock: ")
    if text:
        job.said.append(text[:1000])
        share = _SHARE.search(text)
        if share is not None:
            job.share = min(100, int(share[1]))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a process and whatever it started: kindly, then not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            await asyncio.wait_for(process.wait(), _GRACE_S)
        except TimeoutError:
            continue
        break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # a child that did not listen


def _now() -> int:
    return time.time_ns() // 1_000_000
