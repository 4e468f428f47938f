"""Where a rebuild reads and where it writes: the store itself, which it then owns; or another folder.

With another folder the store is only read, also while a broker appends to it: up to the end that consumers may see. The
new folder gets queues and index where a store has them, and nothing else stays in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.errors import BadSettings, BadStore, StoreInUse
from penstock.store.file_queue import FileQueue
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.overlay_files import OverlayFiles
from penstock.store.quarantine import MayExceed, Quarantine
from penstock.store.rebuilding.plan import LogFacts
from penstock.store.repair.place import Place, own
from penstock.store.repair.sizes import fit_sizes
from penstock.store.settings import Settings
from penstock.store.tail import StoreTail


class Source(msgspec.Struct, frozen=True):
    """A log, the store that it is of, and the folder that gets what is built."""

    files: Files
    layout: Layout
    target: Layout
    settings: Settings
    index_problem: str
    clock: Callable[[], int]
    quarantine: Quarantine
    log: LogFacts
    place: Place | None
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
) -> Iterator[Source]:
    """Owns the store until the end. Raises BadStore, StoreInUse, StoreFailed."""
    owning = own(folder, settings, dry_run=dry_run, files=files, clock=clock, may_exceed=may_exceed)
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(owning)
        except StoreInUse:
            check_unused(Layout.of(folder, settings), files)
            raise  # it is a job of external dispatch
        log = _look(place.layout, place.settings)
        yield Source(
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
) -> Iterator[Source]:
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
        yield Source(using, layout, target, fitted.settings, problem, clock, quarantine, log, None)
    finally:
        if lock is not None:
            lock.release()


def _look(layout: Layout, settings: Settings) -> LogFacts:
    """A log that nobody appends to. Raises BadStore if its files are not as they must be: that is left to `repair`."""
    files, size = OverlayFiles(), settings.mapped_file_size_commit_log
    queue = FileQueue(files, layout.commit_log, size)
    offsets = queue.look().offsets
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
