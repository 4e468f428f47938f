"""What a rebuild is to do, and how the log is cut for it: values that travel to whoever builds a range.

The plan lies in the staging folder as `rebuild/plan.json`. Whoever builds looks for it first, which tells whether this
host sees the store's folder at all; and a later run that has the same to do finds there which ranges are done. Ranges
are cut without regard to records: each owns those that begin in it.


Where a rebuild reads and where it writes: the store itself, which it then owns; or another folder.

With another folder the store is only read, also while a broker appends to it: up to the end that consumers may see. The
new folder gets queues and index where a store has them, and nothing else stays in it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BadSettings, BadStore, StoreInUse
from penstock.format.index_layout import IndexGeometry
from penstock.store.atomic_files import read_checksummed, write_checksummed
from penstock.store.damage import MayExceed, Quarantine
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.mapped_file_queue import MappedFileQueue
from penstock.store.overlay import OverlayFiles
from penstock.store.readonly.tail import StoreTail
from penstock.store.repair.target import RepairTarget, fit_sizes, own
from penstock.store.settings import Settings

_RANGES: Final = 8
_LEAST: Final = 4 << 20
_MOST: Final = 128 << 20


class RebuildRange(msgspec.Struct, frozen=True):
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


class RebuildTask(msgspec.Struct, frozen=True):
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


class RebuildPlan(msgspec.Struct, frozen=True):
    """A task, and the ranges it is cut into. `token` is its own: a folder with another one is another folder."""

    token: str
    task: RebuildTask
    ranges: list[RebuildRange]

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
        write_checksummed(files, self.folder / "plan.json", self)

    def check_seen(self, files: Files) -> None:
        """Raises BadStore unless this host sees the folder that the plan was written to."""
        found = read_checksummed(files, self.folder / "plan.json", RebuildPlan)
        if found is None or found.token != self.token:
            raise BadStore(
                f"the host {socket.gethostname()} does not see the folder that is being rebuilt; all hosts of the "
                "cluster must see the store under one path",
                path=self.task.staging,
            )


def read_plan(files: Files, staging: Path) -> RebuildPlan | None:
    """The plan that an earlier run left, None if it left none."""
    return read_checksummed(files, staging / "rebuild" / "plan.json", RebuildPlan)


def cut_log(log: LogFacts, size: int | None = None) -> list[RebuildRange]:
    """The log in ranges of about `size` bytes."""
    least = size or min(max((log.end - log.begin) // _RANGES, _LEAST), _MOST)
    ranges: list[RebuildRange] = []
    for base, _ in log.files:
        end = min(log.end - base, log.file_size)
        count = max(round(end / least), 1) if end > 0 else 0
        borders = [end * number // count for number in range(count + 1)] if count else []
        for number in range(count):
            resync, overrun = number > 0, number < count - 1
            ranges.append(RebuildRange(len(ranges), base, borders[number], borders[number + 1], resync, overrun))
    return ranges


class RebuildSource(msgspec.Struct, frozen=True):
    """A log, the store that it is of, and the folder that gets what is built."""

    files: Files
    layout: Layout
    target: Layout
    settings: Settings
    index_problem: str
    clock: Callable[[], int]
    quarantine: Quarantine
    log: LogFacts
    place: RepairTarget | None
    """The store, if it is rebuilt itself."""


@contextlib.contextmanager
def in_place(
    folder: Path,
    settings: Settings,
    *,
    dry_run: bool,
    files: Files | None,
    clock: Callable[[], int],
    may_exceed: MayExceed,
) -> Iterator[RebuildSource]:
    """Owns the store until the end. Raises BadStore, StoreInUse, StoreFailed."""
    owning = own(folder, settings, dry_run=dry_run, files=files, clock=clock, may_exceed=may_exceed)
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(owning)
        except StoreInUse:
            check_unused(Layout.of(folder, settings), files)
            raise  # it is a job of external dispatch
        log = _look(place.layout, place.settings)
        yield RebuildSource(
            place.files,
            place.layout,
            place.layout,
            place.settings,
            place.index_problem,
            clock,
            place.quarantine,
            log,
            place,
        )


@contextlib.contextmanager
def into_folder(
    folder: Path,
    into: Path,
    settings: Settings,
    *,
    dry_run: bool,
    files: Files | None,
    clock: Callable[[], int],
    may_exceed: MayExceed,
) -> Iterator[RebuildSource]:
    """Owns only the new folder, which must have no queues and no index. Raises BadStore, BadSettings, StoreInUse."""
    layout = Layout.of(folder, settings)
    if not folder.is_dir() or not layout.commit_log.is_dir():
        raise BadStore("there is no store here; check the path", path=folder)
    target = Layout(into.absolute(), layout.commit_log)
    if target.root.resolve() == folder.resolve() or folder.resolve() in target.root.resolve().parents:
        raise BadSettings(f"--into {into}: that is the store itself, or lies in it; name a folder elsewhere")
    real = files or Files()
    if any(real.names(each) for each in (target.consume_queue, target.index)):
        raise BadSettings(f"--into {into}: there are queues or an index already; name a folder without")
    fitted = fit_sizes(settings, OverlayFiles(), layout)
    if real.lock_owner(layout.lock):
        log = _look_at_live(layout, fitted.settings)
    else:
        log = _look(layout, fitted.settings)
    quarantine = Quarantine(real, target.quarantine, clock, may_exceed=may_exceed)
    lock = None if dry_run else real.lock(target.root / "penstock" / "lock")
    try:
        using = OverlayFiles() if dry_run else real
        problem = fitted.index_problem
        yield RebuildSource(using, layout, target, fitted.settings, problem, clock, quarantine, log, None)
    finally:
        if lock is not None:
            lock.release()


def _look(layout: Layout, settings: Settings) -> LogFacts:
    """A log that nobody appends to. Raises BadStore if its files are not as they must be: that is left to `repair`."""
    files, size = OverlayFiles(), settings.mapped_file_size_commit_log
    queue = MappedFileQueue(files, layout.commit_log, size)
    offsets = queue.listing().offsets
    begin = offsets[0] if offsets else 0
    return _facts(layout, size, begin, begin + len(offsets) * size, list(offsets))


def _look_at_live(layout: Layout, settings: Settings) -> LogFacts:
    tail = StoreTail(layout, settings)
    with contextlib.closing(tail):
        size = tail.settings.mapped_file_size_commit_log
        offsets = list(range(tail.log_min - tail.log_min % size, tail.log_end, size))
        return _facts(layout, size, tail.log_min, tail.log_end, offsets, is_live=True)


def _facts(layout: Layout, size: int, begin: int, end: int, offsets: list[int], *, is_live: bool = False) -> LogFacts:
    files = OverlayFiles()
    times = [0 if is_live else files.modified_ms(layout.commit_log / f"{offset:020d}") for offset in offsets]
    folder = str(layout.commit_log.absolute())
    return LogFacts(folder, size, begin, end, list(zip(offsets, times, strict=True)), is_live)


def check_unused(layout: Layout, files: Files | None = None) -> None:
    """Raises StoreInUse if somebody has the store open; takes nothing."""
    if (files or Files()).lock_owner(layout.lock):
        raise StoreInUse(
            "the store is in use; stop its broker first, or build into another folder with `penstock pipeline rebuild "
            "--into DIR`",
            path=layout.root,
        ) from None
