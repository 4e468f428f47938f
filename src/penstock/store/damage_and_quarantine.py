"""Damaged ranges of the log as data, the file `penstock/damaged.json`, and the quarantine.

Java RocketMQ truncates the log at damage in its middle. Penstock skips only the damaged bytes. `damaged.json` holds
every damaged range that recovery, an audit or a repair has found. So a start also knows of damage in log files that it
does not scan. The store's owner replaces the file atomically; any process may read it. If the file is lost, a full scan
finds the ranges again.

`Quarantine` keeps data that recovery or a repair truncates or replaces, in `penstock/quarantine/<time>/`, which
RocketMQ ignores. `keep` writes and syncs a copy; the caller changes the original afterwards. `move_in` moves a file or
folder; its path below `<time>/` is its path in the store. After a crash the data is in its old place, in the
quarantine, or in both. Penstock never deletes from the quarantine; only people do. Before the quarantine exceeds
`quarantineMaxBytes`, `may_exceed` is called; if it returns False, nothing changes. A caller that keeps several things
must `reserve` the bytes of all of them first. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import msgspec

from penstock.errors import StoreFailed, disk_refused
from penstock.store.files.atomic_files import Natural, read_checksummed, write_checksummed
from penstock.store.files.file_io import Files

MISSING = "MISSING"
"""The `reason` of a range whose log file is missing. All other reasons are names of `Reason`."""


class DamagedRange(msgspec.Struct, frozen=True, order=True):
    """A range of one log file that holds no valid record, although valid records follow in the log."""

    physical_offset: Natural
    size: Natural
    reason: str

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class _Document(msgspec.Struct):
    ranges: list[DamagedRange]


def read_damage(files: Files, path: Path) -> list[DamagedRange]:
    """Returns the ranges in `damaged.json`, in log order; none if the file is missing or garbage."""
    return known_damage(files, path) or []


def known_damage(files: Files, path: Path) -> list[DamagedRange] | None:
    """Like `read_damage`, but returns None if the file is garbage."""
    document = read_checksummed(files, path, _Document)
    if document is None:
        return None if files.exists(path) else []
    return sorted(each for each in document.ranges if each.size > 0)


def write_damage(files: Files, path: Path, ranges: Iterable[DamagedRange]) -> None:
    """Replaces the file atomically. Raises StoreFailed."""
    write_checksummed(files, path, _Document(sorted(ranges)))


def merged(ranges: Iterable[DamagedRange]) -> list[DamagedRange]:
    """Returns the ranges in log order. Joins ranges that overlap or touch; the first range's reason is kept."""
    joined: list[DamagedRange] = []
    for each in sorted(ranges):
        last = joined[-1] if joined else None
        if last is not None and each.physical_offset <= last.end:
            joined[-1] = DamagedRange(last.physical_offset, max(last.end, each.end) - last.physical_offset, last.reason)
        else:
            joined.append(each)
    return joined


def inside(ranges: Iterable[DamagedRange], begin: int, end: int) -> list[DamagedRange]:
    """Returns the parts of the ranges in [begin, end) of the log, in log order and without overlaps."""
    parts: list[DamagedRange] = []
    for each in sorted(ranges):
        begin = max(begin, each.physical_offset)
        if begin < min(each.end, end):
            parts.append(DamagedRange(begin, min(each.end, end) - begin, each.reason))
            begin = parts[-1].end
    return parts


def merged_by_file(ranges: Iterable[DamagedRange], file_size: int) -> list[DamagedRange]:
    """Like `merged`, but splits the ranges at the boundaries of log files."""
    by_file: dict[int, list[DamagedRange]] = {}
    for each in ranges:
        begin = each.physical_offset
        while begin < each.end:
            end = min(each.end, begin + file_size - begin % file_size)
            by_file.setdefault(begin // file_size, []).append(DamagedRange(begin, end - begin, each.reason))
            begin = end
    return [joined for number in sorted(by_file) for joined in merged(by_file[number])]


# -- quarantine ----------------------------------------------------------------------------------------------------

DEFAULT_MAX_BYTES = 4 << 30
MayExceed: TypeAlias = Callable[[int, int, int], bool]
"""Takes the bytes to add, the bytes already held, and the limit. Returns whether the limit may be exceeded."""


def never_exceed(needed: int, held: int, limit: int) -> bool:
    """The default: the quarantine never exceeds its limit."""
    return False


class QuarantinedFolder(msgspec.Struct, frozen=True):
    """One folder of the quarantine: the data that one start or repair kept."""

    folder: str
    files: int
    size: int
    """Bytes of the disk blocks that the folder's files occupy."""


class Quarantine:
    """The quarantine folder of one start or repair. It is created when the first data is kept."""

    def __init__(
        self,
        files: Files,
        root: Path,
        clock: Callable[[], int],
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        may_exceed: MayExceed = never_exceed,
    ) -> None:
        self._io = files
        self._root = root
        self._clock = clock
        self._max_bytes = max_bytes
        self._may_exceed = may_exceed
        self._folder: Path | None = None
        self._reserved = 0
        """Bytes that are reserved and not used yet."""
        self._agreed = False

    # -- reserving -------------------------------------------------------------------------------------------

    def reserve(self, needed: int) -> None:
        """Reserves `needed` bytes. Callers must reserve before they change anything. Raises StoreFailed if refused."""
        if not needed or self._io.read_only:
            return
        held = self._io.allocated(self._root)
        if not self._agreed and held + self._reserved + needed > self._max_bytes:
            if not self._may_exceed(self._reserved + needed, held, self._max_bytes):
                raise StoreFailed(
                    f"{self._reserved + needed} bytes must be kept here, which already holds {held} bytes, and "
                    f"quarantineMaxBytes allows {self._max_bytes}; raise that setting, or remove old folders "
                    "here by hand",
                    path=self._root,
                )
            self._agreed = True
        self._reserved += needed

    def _use(self, needed: int) -> None:
        if needed > self._reserved:
            self.reserve(needed - self._reserved)
        self._reserved -= min(needed, self._reserved)

    # -- keeping ---------------------------------------------------------------------------------------------

    def keep(self, name: str, data: bytes | memoryview) -> Path:
        """Writes and syncs a copy. Returns its path. If it raises StoreFailed, do not change the original."""
        self._use(len(data))
        path = self._free(self._own_folder() / name)
        if not self._io.read_only:  # a read-only view needs no copy
            self._io.replace_bytes(path, data)
        return path

    def make_folder(self, name: str) -> Path:
        """Creates a folder for several copies, whose names then begin with its name. Returns its path."""
        folder = self._free(self._own_folder() / name)
        self._io.make_folder(folder)
        return folder

    def move_in(self, path: Path) -> Path:
        """Moves a file or a folder into the quarantine. Returns its new path. Raises StoreFailed."""
        target = self.target_for(path)
        self._io.make_folder(target.parent)
        try:
            self._move(path, target)
        except OSError as error:
            raise disk_refused("cannot be moved to the quarantine", path, 0, error) from error
        return target

    def target_for(self, path: Path) -> Path:
        """Returns the quarantine path for a file or folder that the caller will move itself. Accounts for its size."""
        self._use(0 if self._io.read_only else self._io.allocated(path))
        return self._free(self._own_folder() / self._name_of(path))

    def _move(self, path: Path, target: Path) -> None:
        try:
            self._io.rename(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV or self._io.is_folder(path):
                raise
            self._copy(path, target)  # the log may lie on another disk
            self._io.unlink(path)
        else:
            self._io.sync_folder(target.parent)
        self._io.sync_folder(path.parent)

    def _copy(self, path: Path, target: Path) -> None:
        if not self._io.size(path):
            self._io.replace_bytes(target, b"")
            return
        with contextlib.closing(self._io.open_map(path)) as source:
            self._io.replace_bytes(target, source.view)

    def _name_of(self, path: Path) -> Path:
        store = self._root.parent.parent
        return path.relative_to(store) if path.is_relative_to(store) else Path(path.parent.name, path.name)

    def _free(self, path: Path) -> Path:
        while self._io.exists(path):
            path = path.with_name(path.name + "+")
        return path

    def _own_folder(self) -> Path:
        if self._folder is None:
            moment = datetime.fromtimestamp(self._clock() / 1000)
            name = f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03d}"
            self._folder = self._free(self._root / name)
            self._io.make_folder(self._folder)
        return self._folder


def quarantined_folders(files: Files, root: Path) -> list[QuarantinedFolder]:
    """The folders of a quarantine, oldest first."""
    folders: list[QuarantinedFolder] = []
    for name in files.names(root):
        sizes = [facts.st_blocks * 512 for _, facts in files.files_below(root / name)]
        folders.append(QuarantinedFolder(name, len(sizes), sum(sizes)))
    return folders
