"""`penstock` verbs as child processes: Spark jobs with their forms, and read-only verbs on a store on this machine.

Each form value is passed as `--option=value`, so a value cannot become an option itself. The store is fixed when the
console starts; a viewer cannot choose another.

Each process has its own session. When its job is cancelled or the console ends, the process is ended with all its
children, so that no Spark process stays behind. Of its stdout, the first `_MAX_OUTPUT` bytes are kept. Of its stderr,
which contains the progress, the last lines are kept. Jobs do not outlive the console. The module is not thread-safe:
use it from the event loop's thread only.
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

# -- forms -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a form."""

    name: str
    label: str
    choices: tuple[str, ...] = ()
    repeats: bool = False
    """Whether each line of the value is a separate option."""
    is_switch: bool = False
    """Whether the option is a flag without a value."""


@dataclass(frozen=True, slots=True)
class JobForm:
    """The form of one verb of `penstock pipeline`."""

    verb: str
    title: str
    about: str
    fields: tuple[Field, ...] = ()
    over_network: bool = False
    """Whether the job can also read from a cluster if the console has no store."""
    confirmation: str = ""
    """The question before a job that changes the store; empty for other jobs."""


_SINCE: Final = Field("since", "Stored at or after, e.g. 2026-11-16T08:00")
_UNTIL: Final = Field("until", "Stored before")
FORMS: Final = {
    form.verb: form
    for form in (
        JobForm("usage", "Usage", "Disk usage by topic, queue, tag, producer, day and hour."),
        JobForm("verify", "Verify", "Verifies every record, queue unit, key and config file. Read-only."),
        JobForm(
            "search",
            "Search",
            "Searches messages by content. All given conditions must match.",
            (
                Field("topic", "Topic"),
                Field("key", "Keys, one per line (any matches)", repeats=True),
                Field("id", "Message id"),
                Field("text", "Text in the body"),
                Field("regex", "Regular expression in the body"),
                Field("json-path", "JSON path, e.g. order.id=7, one per line", repeats=True),
                Field("property", "Properties, NAME=VALUE, one per line", repeats=True),
                Field("tag", "Tag"),
                _SINCE,
                _UNTIL,
                Field("limit", "Limit"),
            ),
            over_network=True,
        ),
        JobForm(
            "export",
            "Export",
            "Writes messages to files by topic and day. The next run into the same folder adds only new messages.",
            (
                Field("topic", "Topics, one per line; empty for all", repeats=True),
                Field("format", "Format", choices=("parquet", "json")),
                Field("decode", "Decode bodies", choices=("text", "json")),
                _SINCE,
                Field("once", "Export once, not incrementally", is_switch=True),
            ),
            over_network=True,
        ),
        JobForm(
            "rebuild",
            "Rebuild",
            "Rebuilds queues and index from the log. The broker must be stopped; the old files go to quarantine.",
            (
                Field("topic", "Only this topic"),
                Field("queue", "Only this queue"),
                Field("dry-run", "Dry run", is_switch=True),
            ),
            confirmation="Replaces the store's queues and index once the new ones are complete and verified.",
        ),
    )
}
EXPORT_FOLDER: Final = "folder"
"""The form field with the name of an export's folder."""
_FOLDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MAX_LENGTH: Final = 4096


def arguments_of(verb: str, given: Mapping[str, str]) -> list[str]:
    """Returns the command-line options for the form values `given`. Raises BadRequest for an unknown verb or field, or
    an invalid value.
    """
    form = FORMS.get(verb)
    if form is None:
        raise BadRequest(f"unknown job {verb[:40]!r}; known jobs: {', '.join(FORMS)}")
    fields = {field.name: field for field in form.fields}
    arguments = []
    for name, value in given.items():
        if name not in fields:
            raise BadRequest(f"job {verb} has no field {name[:40]!r}; its fields: {', '.join(fields) or 'none'}")
        if len(value) > _MAX_LENGTH or "\0" in value:
            raise BadRequest(f"{name} is too long, or not text")
        field = fields[name]
        if field.choices and value not in field.choices:
            raise BadRequest(f"{name} must be one of {', '.join(field.choices)}, not {value[:40]!r}")
        if field.is_switch:
            arguments += [f"--{name}"] if value == "true" else []
            continue
        parts = value.splitlines() if field.repeats else [value.strip()]
        arguments += [f"--{name}={part}" for part in parts if part.strip()]
    return arguments


def folder_of(exports: Path | None, name: str) -> Path:
    """Returns the folder of the export `name`. Raises BadRequest for an invalid name, or if the console has no export
    folder.
    """
    if exports is None:
        raise BadRequest("no folder for exports; start the console with --exports DIR")
    if _FOLDER.fullmatch(name) is None:
        raise BadRequest(f"the folder's name must be letters, digits, '_' and '-', not {name[:40]!r}")
    return exports / name


# -- processes -------------------------------------------------------------------------------------------------------

MAX_RUNNING: Final = 2
_MAX_KEPT: Final = 50
_MAX_OUTPUT: Final = 32 << 20
_MAX_LOG_LINES: Final = 200
_GRACE_S: Final = 5.0
_PROGRESS: Final = re.compile(r": (\d{1,3}) % of ")
_COMMAND: Final = (sys.executable, "-m", "penstock.cli.main")


class JobState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True, kw_only=True)
class Job:
    """One run of a `penstock pipeline` verb."""

    number: int
    verb: str
    arguments: list[str]
    started_ms: int
    ended_ms: int = 0
    state: JobState = JobState.RUNNING
    status: int | None = None
    """The exit status: 0 done, 1 done and problems found, 2 could not run; None if the job has not ended."""
    share: int = 0
    """Progress in percent."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_LOG_LINES))
    output: str = ""
    is_cut: bool = False

    @property
    def results(self) -> list[Any]:
        """The job's output: one JSON document per line."""
        documents = []
        for line in self.output.splitlines():
            with contextlib.suppress(ValueError):
                documents.append(json.loads(line))
        return documents


class Jobs:
    """The jobs of this console by number, newest last."""

    def __init__(self, command: Sequence[str] = _COMMAND) -> None:
        self._command = tuple(command)
        self._numbers = itertools.count(1)
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.all: dict[int, Job] = {}

    def start(self, verb: str, arguments: Sequence[str]) -> Job:
        """Starts `penstock pipeline VERB … --json`. Raises BadRequest if `MAX_RUNNING` jobs are running."""
        running = sum(job.state is JobState.RUNNING for job in self.all.values())
        if running >= MAX_RUNNING:
            raise BadRequest(f"{running} jobs are running; wait for one, or cancel it")
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
        """Cancels a running job and waits for its end."""
        if job.state is not JobState.RUNNING:
            return
        job.state = JobState.CANCELLED
        process = self._processes.get(job.number)
        if process is not None:
            await _kill(process)
        await self.wait(job)

    async def close(self) -> None:
        """Cancels all running jobs."""
        for job in [job for job in self.all.values() if job.state is JobState.RUNNING]:
            await self.cancel(job)

    async def run_json(self, *arguments: str) -> Any:
        """Runs a verb and returns its JSON output. Raises PenstockError with the verb's own error."""
        process = await self._spawn(arguments)
        try:
            output, errors = await process.communicate()
        except asyncio.CancelledError:
            await _kill(process)
            raise
        try:
            return json.loads(output)
        except ValueError:
            lines = errors.decode("utf-8", "replace").strip().splitlines()
            raise PenstockError(lines[-1].removeprefix("penstock: ") if lines else "the verb had no output") from None

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
            if job.state is JobState.CANCELLED:  # cancelled while the process was being started
                await _kill(process)
            await asyncio.gather(_read_output(job, process), _read_log(job, process))
            job.status = await process.wait()
        except OSError as error:
            job.log.append(str(error))
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


async def _read_log(job: Job, process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    pending = b""
    while part := await process.stderr.read(1 << 14):
        *lines, pending = (pending + part[-(1 << 14) :]).split(b"\n")
        for line in lines:
            _add_log_line(job, line)
    _add_log_line(job, pending)


def _add_log_line(job: Job, line: bytes) -> None:
    text = line.decode("utf-8", "replace").strip().removeprefix("penstock: ")
    if text:
        job.log.append(text[:1000])
        share = _PROGRESS.search(text)
        if share is not None:
            job.share = min(100, int(share[1]))


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Ends a process and its children with SIGTERM, then with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            await asyncio.wait_for(process.wait(), _GRACE_S)
        except TimeoutError:
            continue
        break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # children that ignored SIGTERM


def _now() -> int:
    return time.time_ns() // 1_000_000
