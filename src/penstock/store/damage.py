"""Damaged ranges of the log as data, the file `penstock/damaged.json`, and the quarantine.

Java RocketMQ truncates the log at damage in its middle; here only the damaged bytes are skipped. `damaged.json` holds
every range that recovery, an audit or a repair has found, so that a start knows of damage before the files it scans. It
is replaced atomically by the store's owner; any process reads it. If it is lost, a full scan finds the ranges again.

`Quarantine` keeps what recovery or a repair cuts off or replaces, in `penstock/quarantine/<time>/`, which RocketMQ
ignores. `keep` writes and syncs a copy before the original may change; `move_in` moves a file or folder to the path it
had in the store. A crash leaves a thing where it was, in the quarantine, or (a copy) in both. Only people delete from
it. Before it exceeds `quarantineMaxBytes`, `may_exceed` is asked; if it declines, nothing changes. So a caller that
keeps much reserves all of it first (`reserve`). One thread uses a Quarantine.
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
from penstock.store.atomic_files import read_checksummed, write_checksummed
from penstock.store.io import Files

MISSING = "MISSING"
"""The reason of a range whose whole file is missing; the other reasons are names of `Reason`."""


class DamagedRange(msgspec.Struct, frozen=True, order=True):
    """Bytes of one log file that hold no valid record, although valid ones follow."""

    physical_offset: int
    size: int
    reason: str

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class _Document(msgspec.Struct):
    ranges: list[DamagedRange]


def read_damage(files: Files, path: Path) -> list[DamagedRange]:
    """The known ranges, in order of their offsets; empty if the file is missing or unreadable."""
    return known_damage(files, path) or []


def known_damage(files: Files, path: Path) -> list[DamagedRange] | None:
    """Like `read_damage`, but None if the file exists and is unreadable."""
    document = read_checksummed(files, path, _Document)
    if document is None:
        return None if files.exists(path) else []
    return sorted(each for each in document.ranges if each.physical_offset >= 0 and each.size > 0)


def write_damage(files: Files, path: Path, ranges: Iterable[DamagedRange]) -> None:
    """Replaces the file atomically. Raises StoreFailed."""
    write_checksummed(files, path, _Document(sorted(ranges)))


def merged(ranges: Iterable[DamagedRange]) -> list[DamagedRange]:
    """Joins ranges that overlap or touch; the first one's reason wins."""
    joined: list[DamagedRange] = []
    for each in sorted(ranges):
        last = joined[-1] if joined else None
        if last is not None and each.physical_offset <= last.end:
            joined[-1] = DamagedRange(last.physical_offset, max(last.end, each.end) - last.physical_offset, last.reason)
        else:
            joined.append(each)
    return joined


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
"""Called with the bytes to add, the bytes already held, and the limit."""


def never_exceed(needed: int, held: int, limit: int) -> bool:
    """The default: the quarantine never exceeds its limit."""
    return False


class QuarantinedFolder(msgspec.Struct, frozen=True):
    """One folder of the quarantine."""

    folder: str
    files: int
    size: int
    """Bytes of the blocks that its files occupy."""


class Quarantine:
    """The quarantine folder of one start or repair, created when the first thing is kept."""

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
        """Bytes reserved and not used yet."""
        self._agreed = False

    # -- reserving -------------------------------------------------------------------------------------------

    def reserve(self, needed: int) -> None:
        """Reserves bytes before anything is changed. Raises StoreFailed if the limit forbids it."""
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
        """Writes a copy and syncs it. If it raises StoreFailed, the original must not be changed."""
        self._use(len(data))
        path = self._free(self._own_folder() / name)
        if not self._io.read_only:  # a read-only view needs no copy
            self._io.replace_bytes(path, data)
        return path

    def move_in(self, path: Path) -> Path:
        """Moves a file or a folder into the quarantine. Raises StoreFailed; then it is still in its place."""
        target = self.target_for(path)
        self._io.make_folder(target.parent)
        try:
            self._move(path, target)
        except OSError as error:
            raise disk_refused("cannot be moved to the quarantine", path, 0, error) from error
        return target

    def target_for(self, path: Path) -> Path:
        """The path to move a file or a folder to, for callers that move it themselves; reserves its size."""
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
