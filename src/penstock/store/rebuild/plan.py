"""The plan of a rebuild: the queues to build, the folders to read and write, and the ranges of the log.

`RebuildTask` and `RebuildPlan` are plain values that are sent to the processes that build ranges. The plan is also in
the staging folder, as `rebuild/plan.json`. Each task reads that file first: it shows whether its host sees the
store's folder. A later run with the same task reuses the plan and the ranges that are done. Ranges are cut at any byte;
each owns the records that begin in it.

A rebuild in place owns the store. A rebuild into another folder only reads the store, up to the end that consumers may
see, so a broker may be appending to it. The new folder gets only queues and index.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock.errors import BadSettings, BadStore, StoreInUse
from penstock.format.index_layout import IndexGeometry
from penstock.store.damage_and_quarantine import MayExceed, Quarantine
from penstock.store.deleted_topics_file import read_deleted_topics
from penstock.store.files.atomic_files import read_checksummed, write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout
from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.readonly.follow_growing_queues import StoreTail
from penstock.store.readonly.infer_file_sizes import fit_to_damaged
from penstock.store.readonly.store_folder import no_store
from penstock.store.rebuild.target_store import TargetStore, open_target
from penstock.store.settings import Settings

_RANGES: Final = 8
_MIN_RANGE: Final = 4 << 20
_MAX_RANGE: Final = 128 << 20


class TaskRunner(Protocol):
    """Calls `work` for each piece, on any thread or host; returns the results in the order of the pieces.

    A piece is the input of one task: a range of the log, an index file or a group of queues.
    """

    def __call__(self, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]: ...


class RebuildRange(msgspec.Struct, frozen=True):
    """Bytes `start` to `stop` of one file of the log."""

    number: int
    base: int
    """Physical offset where the file begins."""
    start: int
    stop: int
    resync: bool
    """Whether the file has an earlier range. If so, the scan begins at the first record at or after `start`."""
    overrun: bool
    """Whether the file has a later range."""


class LogFacts(msgspec.Struct, frozen=True):
    """The state of the log at the time of the plan. If it has changed, a later run does not reuse built ranges."""

    folder: str
    file_size: int
    begin: int
    end: int
    files: list[tuple[int, int]]
    """Each file's base offset and modification time."""
    used: int = 0
    """Where the last file's data ends: an append through a map does not change the time of a file in a tmpfs."""
    is_live: bool = False
    """Whether a broker appends to the log: its files change, but not the bytes before `end`."""


class RebuildTask(msgspec.Struct, frozen=True):
    """The queues and the index to build from the log."""

    log: LogFacts
    staging: str
    queue_file_size: int
    index: tuple[int, int] | None
    """Slots and items of an index file; None if no index is built."""
    delay_levels: tuple[int, ...]
    deleted: dict[str, int]
    """By deleted topic: its records before this physical offset get no units."""
    topic: str | None = None
    queue_id: int | None = None
    index_only: bool = False

    @property
    def geometry(self) -> IndexGeometry:
        return IndexGeometry(*(self.index or ()))

    def selects(self, topic: str, queue_id: int) -> bool:
        """Whether a queue is to be built."""
        return not self.index_only and self.topic in (None, topic) and self.queue_id in (None, queue_id)


class RebuildPlan(msgspec.Struct, frozen=True):
    """A task and its ranges. `token`: a random name that identifies the plan file."""

    token: str
    task: RebuildTask
    ranges: list[RebuildRange]

    @property
    def folder(self) -> Path:
        """The folder of the plan, and of the notes and keys of the ranges."""
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

    def check_visible(self, files: Files) -> None:
        """Raises BadStore unless this host sees the folder that the plan was written to."""
        plan = read_checksummed(files, self.folder / "plan.json", RebuildPlan)
        if plan is None or plan.token != self.token:
            raise BadStore(
                f"the host {socket.gethostname()} does not see the folder that is being rebuilt; all hosts of the "
                "cluster must see the store under one path",
                path=self.task.staging,
            )


def read_plan(files: Files, staging: Path) -> RebuildPlan | None:
    """Returns the plan that an earlier run left in the staging folder, or None."""
    return read_checksummed(files, staging / "rebuild" / "plan.json", RebuildPlan)


def cut_log(log: LogFacts, size: int | None = None) -> list[RebuildRange]:
    """Splits the log into ranges of about `size` bytes; without `size`, an eighth of the log, but 4 to 128 MiB."""
    target_size = size or min(max((log.end - log.begin) // _RANGES, _MIN_RANGE), _MAX_RANGE)
    ranges: list[RebuildRange] = []
    for base, _ in log.files:
        end = min(log.end - base, log.file_size)
        count = max(round(end / target_size), 1) if end > 0 else 0
        borders = [end * number // count for number in range(count + 1)] if count else []
        for number in range(count):
            resync, overrun = number > 0, number < count - 1
            ranges.append(RebuildRange(len(ranges), base, borders[number], borders[number + 1], resync, overrun))
    return ranges


# -- where a rebuild reads and writes -----------------------------------------------------------------------------


class RebuildSource(msgspec.Struct, frozen=True):
    """A store, its log, and the folder for the new files."""

    files: Files
    layout: Layout
    output: Layout
    settings: Settings
    index_problem: str
    clock: Callable[[], int]
    quarantine: Quarantine
    log: LogFacts
    owned: TargetStore | None
    """The locked store, if it is rebuilt in place; None if the new files go to another folder."""

    @classmethod
    def in_place(cls, owned: TargetStore) -> RebuildSource:
        """Returns a source whose new files replace the old ones. Raises BadStore if the log needs a `repair` first."""
        layout, settings = owned.layout, owned.settings
        log = _log_facts(owned.files, layout, settings)
        quarantine, problem = owned.quarantine, owned.index_problem
        return cls(owned.files, layout, layout, settings, problem, owned.clock, quarantine, log, owned)

    def task(
        self, *, with_index: bool, topic: str | None = None, queue_id: int | None = None, index_only: bool = False
    ) -> RebuildTask:
        """Returns the task to build all queues, or the selected ones."""
        settings, geometry = self.settings, self.settings.index_geometry
        return RebuildTask(
            self.log,
            str(self.output.staging.absolute()),
            settings.mapped_file_size_consume_queue,
            (geometry.slots, geometry.items) if with_index else None,
            settings.delay_levels,
            read_deleted_topics(self.files, self.layout.deleted_topics),
            topic,
            queue_id,
            index_only,
        )


@contextlib.contextmanager
def open_in_place(
    folder: Path,
    settings: Settings,
    *,
    dry_run: bool,
    files: Files | None,
    clock: Callable[[], int],
    may_exceed: MayExceed,
) -> Iterator[RebuildSource]:
    """Opens a store to be rebuilt in place, and holds its lock. Raises BadStore, StoreInUse, StoreFailed."""
    opening = open_target(folder, settings, dry_run=dry_run, files=files, clock=clock, may_exceed=may_exceed)
    with contextlib.ExitStack() as stack:
        try:
            owned = stack.enter_context(opening)
        except StoreInUse:
            check_unused(Layout.of(folder, settings), files)
            raise  # a job of external dispatch has it
        yield RebuildSource.in_place(owned)


@contextlib.contextmanager
def open_into_folder(
    folder: Path,
    into: Path,
    settings: Settings,
    *,
    dry_run: bool,
    files: Files | None,
    clock: Callable[[], int],
    may_exceed: MayExceed,
) -> Iterator[RebuildSource]:
    """Opens a store to be rebuilt into the folder `into`, and locks only that folder.

    `into` must have no queues and no index. Raises BadStore, BadSettings, StoreInUse.
    """
    layout = Layout.of(folder, settings)
    if not folder.is_dir() or not layout.commit_log.is_dir():
        raise no_store(folder)
    output = Layout(into.absolute(), layout.commit_log)
    if output.root.resolve() == folder.resolve() or folder.resolve() in output.root.resolve().parents:
        raise BadSettings(f"--into {into}: this is the store itself or a folder in it; give a folder elsewhere")
    real = files or Files()
    if any(real.names(each) for each in (output.consume_queue, output.index)):
        raise BadSettings(f"--into {into}: the folder already has queues or an index; give another one")
    fitted = fit_to_damaged(settings, OverlayFiles(), layout)
    if real.lock_owner(layout.lock):
        log = _live_log_facts(layout, fitted.settings)
    else:
        log = _log_facts(OverlayFiles(), layout, fitted.settings)
    quarantine = Quarantine(real, output.quarantine, clock, may_exceed=may_exceed)
    lock = None if dry_run else real.lock(output.root / "penstock" / "lock")
    try:
        used = OverlayFiles() if dry_run else real
        problem = fitted.index_problem
        yield RebuildSource(used, layout, output, fitted.settings, problem, clock, quarantine, log, None)
    finally:
        if lock is not None:
            lock.release()


def _log_facts(files: Files, layout: Layout, settings: Settings) -> LogFacts:
    """Returns the facts of a log that does not grow. Raises BadStore if its files need a `repair` first."""
    size = settings.mapped_file_size_commit_log
    queue = MappedFileQueue(files, layout.commit_log, size)
    offsets = queue.listing().offsets
    begin = offsets[0] if offsets else 0
    return _facts_of(files, layout, size, begin, begin + len(offsets) * size, list(offsets))


def _live_log_facts(layout: Layout, settings: Settings) -> LogFacts:
    tail = StoreTail(layout, settings)
    with contextlib.closing(tail):
        size = tail.settings.mapped_file_size_commit_log
        offsets = list(range(tail.log_min - tail.log_min % size, tail.log_end, size))
        return _facts_of(OverlayFiles(), layout, size, tail.log_min, tail.log_end, offsets, is_live=True)


def _facts_of(
    files: Files, layout: Layout, size: int, begin: int, end: int, offsets: list[int], *, is_live: bool = False
) -> LogFacts:
    times = [0 if is_live else files.modified_ms(layout.commit_log / f"{offset:020d}") for offset in offsets]
    used = 0
    if offsets and not is_live:
        with contextlib.closing(files.open_map(layout.commit_log / f"{offsets[-1]:020d}")) as last:
            used = last.nonzero_end(0)
    folder = str(layout.commit_log.absolute())
    return LogFacts(folder, size, begin, end, list(zip(offsets, times, strict=True)), used, is_live)


def check_unused(layout: Layout, files: Files | None = None) -> None:
    """Raises StoreInUse if another process has the store open; takes no lock."""
    if (files or Files()).lock_owner(layout.lock):
        raise StoreInUse(
            "the store is in use; stop its broker first, or build into another folder with `penstock pipeline rebuild "
            "--into DIR`",
            path=layout.root,
        ) from None
