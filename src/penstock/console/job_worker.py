"""The child's side of jobs: a process that runs one job after the other and hands their output to the console.

The console writes requests to stdin: a line each, a JSON list with the arguments of a verb. The process writes frames
to stdout: a byte for the kind, four bytes for the length (big-endian), then the content.

    b    a job begins
    o    bytes of its stdout
    e    bytes of its stderr
    x    its end: `[status, stays]` as JSON; status is null if an exception ended it

What other code writes to the descriptors 1 and 2, such as Java's messages, goes to the process's own stderr.

The console closes stdin to end the process. If it does so in the middle of a job, or is killed, the process ends at
once with its children. So no process outlives its console.
"""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import struct
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER: Final = struct.Struct(">cI")
"""Kind and length of a frame."""
BEGIN: Final = b"b"
OUTPUT: Final = b"o"
LOG: Final = b"e"
END: Final = b"x"
MAX_FRAME: Final = 1 << 16
"""The largest content of a frame, in bytes."""


class JobRunner(Protocol):
    """What a process does for its jobs. All calls come from the main thread."""

    def run(self, arguments: list[str]) -> int:
        """Runs one job, which prints to `sys.stdout` and `sys.stderr`, and returns its exit status."""

    def stays(self) -> bool:
        """Whether the process has something that the next job can use. It ends after a job otherwise."""

    def close(self) -> None:
        """Releases it, before the process ends."""


def serve_jobs(runner: JobRunner) -> None:
    """Runs the jobs that the console requests. Returns when the process is of no more use. Call it once, in the main
    thread of a process that leads its own process group.
    """
    frames = _Frames(os.dup(1))
    requests = _Requests(os.dup(0))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Stream(frames, OUTPUT)), "utf-8", "backslashreplace")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Stream(frames, LOG)), "utf-8", "backslashreplace", line_buffering=True
    )
    try:
        stays = True
        while stays and (arguments := requests.next()) is not None:
            if requests.count > 1 and not runner.stays():
                return  # without a frame, so the console starts another process for the job
            frames.write(BEGIN)
            status: int | None = None
            try:
                status = runner.run(arguments)
            except Exception:
                traceback.print_exc()
            stays = status is not None and runner.stays()
            sys.stdout.flush()
            sys.stderr.flush()
            requests.is_busy = False  # first: with the frame, the console may close the pipe or ask for more
            frames.write(END, json.dumps([status, stays]).encode())
    finally:
        runner.close()


class _Requests:
    """Reads requests in a thread, which ends the process and its children if the console ends during a job."""

    def __init__(self, descriptor: int) -> None:
        self.count = 0
        self.is_busy = False
        """Whether a job has been requested and has not ended."""
        self._queue: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        self._descriptor = descriptor
        threading.Thread(target=self._read, name="penstock-requests", daemon=True).start()

    def next(self) -> list[str] | None:
        """Waits for a request and returns it; None if there are no more."""
        arguments = self._queue.get()
        self.count += 1
        return arguments

    def _read(self) -> None:
        with os.fdopen(self._descriptor, "rb") as lines:
            for line in lines:
                self.is_busy = True
                self._queue.put(json.loads(line))
        if self.is_busy:
            os.killpg(os.getpid(), signal.SIGTERM)
        self._queue.put(None)


class _Frames:
    """Writes frames, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def write(self, kind: bytes, content: bytes = b"") -> None:
        frame = memoryview(HEADER.pack(kind, len(content)) + content)
        with self._lock:
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]


class _Stream(io.RawIOBase):
    """Writes bytes as frames of one kind."""

    def __init__(self, frames: _Frames, kind: bytes) -> None:
        self._frames, self._kind = frames, kind

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Returns the descriptor of the process's own stderr."""
        return 2

    def write(self, content: Buffer, /) -> int:
        part = bytes(memoryview(content)[:MAX_FRAME])
        self._frames.write(self._kind, part)
        return len(part)
