"""Two logs on disk, seen from outside: how far one goes, and whether the other has all of it.

Files are looked at while brokers write them, through the page cache that they share; only bytes that were acknowledged
are asked for, so nothing here depends on how either broker keeps its files.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from bench.harness import BenchFailed
from penstock.store.holes import written_ranges

_PIECE = 1 << 20
_TAIL = 64
"""Bytes of the last record that tell that it is there: its properties, which are not zeros."""
_LOOK_S = 0.002
_MOST_S = 240.0


class Log(msgspec.Struct, frozen=True):
    """The log of a store."""

    store: Path
    file_size: int

    def file(self, offset: int) -> Path:
        return self.store / "commitlog" / f"{offset - offset % self.file_size:020d}"

    def end(self) -> int:
        """The offset behind the last byte that is not zero; 0 if there is none."""
        for path in sorted((self.store / "commitlog").glob("[0-9]*"), reverse=True):
            with path.open("rb", buffering=0) as file:
                for begin, stop in reversed(list(written_ranges(file.fileno(), 0, self.file_size))):
                    for at in range(stop - (stop - begin - 1) % _PIECE - 1, begin - 1, -_PIECE):
                        file.seek(at)
                        if used := len(file.read(min(_PIECE, stop - at)).rstrip(b"\0")):
                            return int(path.name) + at + used
        return 0

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of one file, fewer where it ends; none where there is no such file yet."""
        try:
            with self.file(offset).open("rb", buffering=0) as file:
                file.seek(offset % self.file_size)
                return file.read(count)
        except FileNotFoundError:
            return b""

    def goes_beyond(self, offset: int) -> bool:
        """Whether a record begins at `offset`."""
        return any(self.read(offset, 4))


def wait_until_equal(master: Log, slave: Log, most_s: float = _MOST_S) -> float:
    """Waits until the slave has all that the master has; returns when that was. Raises BenchFailed."""
    end = master.end()
    count = min(_TAIL, end % master.file_size or master.file_size)
    tail = master.read(end - count, count)
    deadline = time.perf_counter() + most_s
    while slave.read(end - count, count) != tail:
        if time.perf_counter() > deadline:
            raise BenchFailed(f"the slave has {slave.end()} of {end} bytes of the log after {most_s:g} s")
        time.sleep(_LOOK_S)
    return time.perf_counter()


def check_equal(master: Log, slave: Log) -> None:
    """Compares all of the master's log, byte by byte. Raises BenchFailed."""
    end = master.end()
    for at in range(0, end, _PIECE):
        count = min(_PIECE, end - at)
        if master.read(at, count) != slave.read(at, count):
            raise BenchFailed(f"the slave's log is not its master's between {at} and {at + count}")
