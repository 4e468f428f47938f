"""The temporary folder of a run. It is removed at the end, after an error, at Ctrl-C and at SIGTERM."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

MIB = 1 << 20
GIB = 1 << 30


class BenchFailed(Exception):
    """Says in one sentence why there are no figures."""


@contextlib.contextmanager
def workspace(parent: Path | None, need: int) -> Iterator[Path]:
    """A new folder below `parent`, or below the system's temporary folder.

    Raises BenchFailed if fewer than `need` bytes are free.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    if not place.is_dir():
        raise BenchFailed(f"{place} is not a folder")
    free = shutil.disk_usage(place).free
    if free < need:
        raise BenchFailed(
            f"{place} has {free / GIB:.1f} GiB free and up to {need / GIB:.1f} GiB are needed; name another folder "
            "with --dir"
        )
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def ended_politely() -> Iterator[None]:
    """Turns SIGTERM into an exit that cleans up, as Ctrl-C does by itself."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
