"""`penstock` verbs as child processes: jobs, and read-only verbs on a store on this machine.

A job's process (`job_worker`) chooses as the verb does between its own threads and Spark, and says which. One that has
started Spark can stay for some minutes, so that the next job finds Spark running; at most one does. It takes the next
job, whichever that is. A process whose job is cancelled, or fails on Spark, ends, and the next job gets a new one.

Each process has its own session. When its job is cancelled or the console ends, the process is ended with all its
children, so that no Spark process stays behind; if the console is killed, its processes notice that and end. Jobs do
not outlive the console. Of a job's stdout, the first `_MAX_OUTPUT` bytes are kept. Of its stderr, which contains the
progress, the last lines are kept. The module is not thread-safe: use it from the event loop's thread only.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from penstock.console.job_worker import BEGIN, END, HEADER, LOG, OUTPUT
from penstock.errors import BadRequest, PenstockError

MAX_RUNNING: Final = 2
_MAX_KEPT: Final = 50
_MAX_OUTPUT: Final = 32 << 20
_MAX_LOG_LINES: Final = 200
_MAX_LINE: Final = 1 << 14
_GRACE_S: Final = 5.0
_PROGRESS: Final = re.compile(r": (\d{1,3}) % of ")
_CHOICE: Final = re.compile(r"[a-z]+: (?:in this process, )?(without Spark.*|on Spark, .*)")
"""The sentence of a verb that says where it runs, and why."""
_COMMAND: Final = (sys.executable, "-m", "penstock.cli.main")
_WORKER: Final = (sys.executable, "-m", "penstock.cli.console_jobs")


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
    """The options that the form gave."""
    started_ms: int
    ended_ms: int = 0
    state: JobState = JobState.RUNNING
    status: int | None = None
    """The exit status: 0 done, 1 done and problems found, 2 could not run; None if the job has not ended."""
    way: str = ""
    """Where it runs and why: `on Spark, …`, or `without Spark …`; empty until that is chosen."""
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

    def add_log_line(self, line: bytes) -> None:
        """Adds a line of stderr to the log, and notices progress and the way that the verb chose."""
        text = line.decode("utf-8", "replace").strip().removeprefix("penstock: ")
        if not text:
            return
        self.log.append(text[:1000])
        share = _PROGRESS.search(text)
        if share is not None:
            self.share = min(100, int(share[1]))
        choice = _CHOICE.fullmatch(text)
        if choice is not None and not self.way:
            self.way = choice[1]


class Jobs:
    """The jobs of this console by number, newest last."""

    def __init__(self, command: Sequence[str] = _COMMAND, worker: Sequence[str] = _WORKER, keep_s: float = 0) -> None:
        """`command` runs a verb, `worker` is the command of a job's process. One that can stay does so for `keep_s`
        seconds.
        """
        self._command, self._worker, self._keep_s = tuple(command), tuple(worker), keep_s
        self._numbers = itertools.count(1)
        self._processes: dict[int, _JobProcess] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._idle: _JobProcess | None = None
        self._expiry: asyncio.Task[None] | None = None
        self._is_closed = False
        self.all: dict[int, Job] = {}

    def start(self, verb: str, command: Sequence[str], shown: Sequence[str] = (), way: str = "") -> Job:
        """Starts a job: `penstock COMMAND`, which prints JSON. `shown` are the options that the form gave. `way` says
        where it runs, if that is known before. Raises BadRequest if `MAX_RUNNING` jobs are running.
        """
        running = sum(job.state is JobState.RUNNING for job in self.all.values())
        if running >= MAX_RUNNING:
            raise BadRequest(f"{running} jobs are running; wait for one, or cancel it")
        job = Job(number=next(self._numbers), verb=verb, arguments=list(shown), started_ms=_now(), way=way)
        self.all[job.number] = job
        while len(self.all) > _MAX_KEPT:
            ended = (number for number, each in self.all.items() if each.state is not JobState.RUNNING)
            del self.all[next(ended)]
        self._tasks[job.number] = asyncio.create_task(self._run(job, command))
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
            await _kill(process.process)
        await self.wait(job)

    async def close(self) -> None:
        """Cancels all running jobs, and ends the process that stays."""
        self._is_closed = True
        for job in [job for job in self.all.values() if job.state is JobState.RUNNING]:
            await self.cancel(job)
        idle = self._take_idle()
        if idle is not None:
            await idle.end()
        elif self._expiry is not None:
            await asyncio.wait([self._expiry])  # it may be ending a process

    async def run_json(self, *arguments: str) -> Any:
        """Runs a verb and returns its JSON output. Raises PenstockError with the verb's own error."""
        process = await _spawn((*self._command, *arguments), asyncio.subprocess.DEVNULL)
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

    async def _run(self, job: Job, command: Sequence[str]) -> None:
        try:
            process = self._take_idle()
            if process is not None and not await self._run_in(process, job, command):
                process = None  # it had ended, or its Spark had, before the job began
            if process is None and job.state is JobState.RUNNING:
                fresh = _JobProcess(await _spawn(self._worker, asyncio.subprocess.PIPE))
                if not await self._run_in(fresh, job, command) and job.state is JobState.RUNNING:
                    job.log.append("the job's process ended before it began")
        except OSError as error:
            job.log.append(str(error))
        finally:
            self._tasks.pop(job.number, None)
            job.ended_ms = _now()
            if job.state is JobState.RUNNING:
                job.state = JobState.DONE if job.status in (0, 1) else JobState.FAILED
            if job.state is JobState.DONE:
                job.share = 100

    async def _run_in(self, process: _JobProcess, job: Job, command: Sequence[str]) -> bool:
        """Runs the job in the process, which then stays or is ended. Returns whether the job began."""
        self._processes[job.number] = process
        try:
            if job.state is JobState.RUNNING:  # not cancelled while the process was being started
                await process.run(job, command)
        finally:
            del self._processes[job.number]
            if process.stays and self._idle is None and self._keep_s > 0 and not self._is_closed:
                self._idle = process
                self._expiry = asyncio.create_task(self._expire(process))
            else:
                await process.end()
        return process.has_begun

    async def _expire(self, process: _JobProcess) -> None:
        """Ends the process that stays when its time is over, or forgets it if it ends by itself."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.process.wait(), self._keep_s)
        if self._idle is process:
            self._idle = None
            await process.end()

    def _take_idle(self) -> _JobProcess | None:
        """Returns the process that stays, if there is one; it is the caller's then."""
        idle, self._idle = self._idle, None
        if idle is not None and self._expiry is not None:
            self._expiry.cancel()
        return idle


class _JobProcess:
    """A child process that runs jobs, one at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.stays = False
        """Whether it can take another job."""
        self.has_begun = False
        """Whether it has begun the last job that it was given."""
        self._job: Job | None = None
        self._log = asyncio.create_task(self._read_log())

    async def run(self, job: Job, command: Sequence[str]) -> None:
        """Runs a job. Its status stays None if the process ends before the job does."""
        assert self.process.stdin is not None
        self._job, self.stays, self.has_begun = job, False, False
        try:
            if not self.process.stdin.is_closing():  # it closes when a process that stayed ends
                self.process.stdin.write(json.dumps(list(command)).encode() + b"\n")
            with contextlib.suppress(asyncio.IncompleteReadError):
                await self._read_frames(job)
                return
            status = await self.process.wait()
            if self.has_begun and job.state is JobState.RUNNING:
                await self._read_last_lines()
                job.log.append(f"the job's process ended with {_describe(status)}")
        finally:
            self._job = None

    async def end(self) -> None:
        """Ends the process with its children. One that waits for a job ends by itself, and what it has with it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), _GRACE_S)
        await _kill(self.process)
        await self._read_last_lines()
        self._log.cancel()

    async def _read_frames(self, job: Job) -> None:
        """Reads the job's output until its end. Raises IncompleteReadError if the process ends before."""
        assert self.process.stdout is not None
        kept, pending = bytearray(), b""
        try:
            while True:
                kind, size = HEADER.unpack(await self.process.stdout.readexactly(HEADER.size))
                content = await self.process.stdout.readexactly(size)
                if kind == BEGIN:
                    self.has_begun = True
                elif kind == OUTPUT:
                    kept += content[: max(0, _MAX_OUTPUT - len(kept))]
                    job.is_cut = job.is_cut or len(kept) >= _MAX_OUTPUT
                elif kind == LOG:
                    pending = _add_log_lines(job, pending + content)
                elif kind == END:
                    job.status, self.stays = json.loads(content)
                    return
        finally:
            job.add_log_line(pending)
            job.output = kept.decode("utf-8", "replace")

    async def _read_log(self) -> None:
        """Adds what Java and the interpreter write to stderr to the log of the current job."""
        assert self.process.stderr is not None
        pending = b""
        while part := await self.process.stderr.read(_MAX_LINE):
            if self._job is not None:
                pending = _add_log_lines(self._job, pending + part)
        if self._job is not None:
            self._job.add_log_line(pending)

    async def _read_last_lines(self) -> None:
        """Waits until stderr is read to its end, but not for long: a child may have it."""
        await asyncio.wait([self._log], timeout=_GRACE_S)


def _add_log_lines(job: Job, content: bytes) -> bytes:
    """Adds the complete lines to the job's log. Returns the rest."""
    *lines, rest = content.split(b"\n")
    for line in lines:
        job.add_log_line(line)
    return rest[-_MAX_LINE:]


def _describe(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {-status} ({signal.strsignal(-status)})"


async def _spawn(command: Sequence[str], stdin: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


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
