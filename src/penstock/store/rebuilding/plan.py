"""What a rebuild is to do, and how the log is cut for it: values that travel to whoever builds a range.

The plan lies in the staging folder as `rebuild/plan.json`. Whoever builds looks for it first, which tells whether this
host sees the store's folder at all; and a later run that has the same to do finds there which ranges are done. Ranges
are cut without regard to records: each owns those that begin in it.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BadStore
from penstock.format.index_layout import IndexGeometry
from penstock.store.files import Files
from penstock.store.sealed_json import read_sealed, write_sealed

_RANGES: Final = 8
_LEAST: Final = 4 << 20
_MOST: Final = 128 << 20


class Range(msgspec.Struct, frozen=True):
    """Bytes `start` to `stop` of one file of the log."""

    number: int
    base: int
    """Where the file begins in the log."""
    start: int
    stop: int
    resync: bool
    """Whether another range lies before it in the file: then it begins with the first record that is found."""
    overrun: bool
    """Whether another one lies behind it."""


class LogFacts(msgspec.Struct, frozen=True):
    """The log as it was when a plan was made: what is built from another one is of no use."""

    folder: str
    file_size: int
    begin: int
    end: int
    files: list[tuple[int, int]]
    """Where each file begins, and when it was modified last."""
    is_live: bool = False
    """Whether somebody appends to it: then its files change, and what lies before `end` does not."""


class Task(msgspec.Struct, frozen=True):
    """What is to be built from the log."""

    log: LogFacts
    staging: str
    queue_file_size: int
    index: tuple[int, int] | None
    """Slots and items of an index file; None if no index is built."""
    delay_levels: tuple[int, ...]
    topic: str | None
    queue_id: int | None
    deleted: dict[str, int]
    """Topics that were deleted: their records before this physical offset get no units."""

    @property
    def geometry(self) -> IndexGeometry:
        return IndexGeometry(*(self.index or ()))

    def selects(self, topic: str, queue_id: int) -> bool:
        return self.topic in (None, topic) and self.queue_id in (None, queue_id)


class Plan(msgspec.Struct, frozen=True):
    """A task, and the ranges it is cut into. `token` is its own: a folder with another one is another folder."""

    token: str
    task: Task
    ranges: list[Range]

    @property
    def folder(self) -> Path:
        """Where notes and keys of the ranges are."""
        return Path(self.task.staging, "rebuild")

    @property
    def queues(self) -> Path:
        return Path(self.task.staging, "consumequeue")

    @property
    def index(self) -> Path:
        return Path(self.task.staging, "index")

    def keys_of(self, number: int) -> Path:
        return self.folder / f"range-{number:06d}.keys"

    def note_of(self, number: int) -> Path:
        return self.folder / f"range-{number:06d}.json"

    def write(self, files: Files) -> None:
        write_sealed(files, self.folder / "plan.json", self)

    def check_seen(self, files: Files) -> None:
        """Raises BadStore unless this host sees the folder that the plan was written to."""
        found = read_sealed(files, self.folder / "plan.json", Plan)
        if found is None or found.token != self.token:
            raise BadStore(
                f"the host {socket.gethostname()} does not see the folder that is being rebuilt; all hosts of the "
                "cluster must see the store under one path",
                path=self.task.staging,
            )


def read_plan(files: Files, staging: Path) -> Plan | None:
    """The plan that an earlier run left, None if it left none."""
    return read_sealed(files, staging / "rebuild" / "plan.json", Plan)


def cut_log(log: LogFacts, size: int | None = None) -> list[Range]:
    """The log in ranges of about `size` bytes."""
    least = size or min(max((log.end - log.begin) // _RANGES, _LEAST), _MOST)
    ranges: list[Range] = []
    for base, _ in log.files:
        end = min(log.end - base, log.file_size)
        count = max(round(end / least), 1) if end > 0 else 0
        borders = [end * number // count for number in range(count + 1)] if count else []
        for number in range(count):
            resync, overrun = number > 0, number < count - 1
            ranges.append(Range(len(ranges), base, borders[number], borders[number + 1], resync, overrun))
    return ranges
