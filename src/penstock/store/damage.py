"""What is cut off or replaced is kept: `penstock/quarantine/<time>/`, which RocketMQ never looks into.

`keep` writes a copy and syncs it, before the original may be changed; the bytes go straight from their map to the file.
`take` moves a file or a folder, under the path that it had in the store. Either leaves, after a crash, the thing where
it was, or in the quarantine, or (a copy) in both. Nothing here is ever removed: that is left to people.

There is a limit, `quarantineMaxBytes`. Before it is exceeded, whoever opened the store is asked, and if they do not
agree, nothing is changed: so who is going to keep much asks for all of it first (`make_room`). One thread uses it.


Damage in the log, as data, and the file that remembers it: `penstock/damaged.json`.

Java would cut the log off at damage in its middle; here only the damaged bytes are passed over. The file holds every
range that a start, a scan or a repair has seen, so that the next start knows of those that lie before the files it
walks. It is replaced atomically; one owner of the store writes it, anyone reads it. If it is lost, nothing else is: a
walk finds the ranges again.
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
from penstock.store.atomic_files import read_sealed, write_sealed
from penstock.store.io import Files

DEFAULT_MAX_BYTES = 4 << 30
MayExceed: TypeAlias = Callable[[int, int, int], bool]
"""Asked with the bytes to be added, those already held, and the limit."""


def never(needed: int, held: int, limit: int) -> bool:
    """The answer of whoever was not told what to answer."""
    return False


class Held(msgspec.Struct, frozen=True):
    """One folder of things kept aside."""

    folder: str
    files: int
    size: int
    """The blocks they take, in bytes."""


class Quarantine:
    """One folder for each start or repair that had to keep something aside, made when the first thing is kept."""

    def __init__(
        self,
        files: Files,
        root: Path,
        clock: Callable[[], int],
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        may_exceed: MayExceed = never,
    ) -> None:
        self._io = files
        self._root = root
        self._clock = clock
        self._max_bytes = max_bytes
        self._may_exceed = may_exceed
        self._folder: Path | None = None
        self._room = 0
        """Bytes that were asked for and have not been used yet."""
        self._agreed = False

    # -- room ------------------------------------------------------------------------------------------------

    def make_room(self, needed: int) -> None:
        """Asks for room before anything is changed. Raises StoreFailed if the limit forbids it."""
        if not needed or self._io.read_only:
            return
        held = self._io.allocated(self._root)
        if not self._agreed and held + self._room + needed > self._max_bytes:
            if not self._may_exceed(self._room + needed, held, self._max_bytes):
                raise StoreFailed(
                    f"{self._room + needed} bytes would have to be kept aside here, where {held} are held already and "
                    f"quarantineMaxBytes allows {self._max_bytes}: raise that setting, or remove old folders here by "
                    "hand",
                    path=self._root,
                )
            self._agreed = True
        self._room += needed

    def _use(self, needed: int) -> None:
        if needed > self._room:
            self.make_room(needed - self._room)
        self._room -= min(needed, self._room)

    # -- keeping ---------------------------------------------------------------------------------------------

    def keep(self, name: str, data: bytes | memoryview) -> Path:
        """Writes a copy aside and syncs it. Raises StoreFailed, and then the original must not be touched."""
        self._use(len(data))
        path = self._free(self._own_folder() / name)
        if not self._io.read_only:  # a view has no use for it
            self._io.replace_bytes(path, data)
        return path

    def take(self, path: Path) -> Path:
        """Moves a file or a folder aside. Raises StoreFailed, and then it is still in its place."""
        target = self.place_for(path)
        self._io.make_folder(target.parent)
        try:
            self._move(path, target)
        except OSError as error:
            raise disk_refused("cannot be moved to the quarantine", path, 0, error) from error
        return target

    def place_for(self, path: Path) -> Path:
        """Where a file or a folder is to be moved, for whoever moves it; room for it is asked for."""
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


def held_folders(files: Files, root: Path) -> list[Held]:
    """What lies in a quarantine, oldest first."""
    found: list[Held] = []
    for name in files.names(root):
        sizes = [facts.st_blocks * 512 for _, facts in files.under(root / name)]
        found.append(Held(name, len(sizes), sum(sizes)))
    return found


MISSING = "MISSING"
"""The reason for a range whose whole file was not there; the other reasons are names of `Reason`."""


class DamagedRange(msgspec.Struct, frozen=True, order=True):
    """Bytes of the log that hold no valid record, though valid ones follow. They lie in one file."""

    physical_offset: int
    size: int
    reason: str

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class _Document(msgspec.Struct):
    ranges: list[DamagedRange]


def read_damage(files: Files, path: Path) -> list[DamagedRange]:
    """The ranges that are known, in order of their offsets; none if the file is missing or cannot be read."""
    return known_damage(files, path) or []


def known_damage(files: Files, path: Path) -> list[DamagedRange] | None:
    """As `read_damage`, but None if there is a file that cannot be read."""
    found = read_sealed(files, path, _Document)
    if found is None:
        return None if files.exists(path) else []
    return sorted(each for each in found.ranges if each.physical_offset >= 0 and each.size > 0)


def write_damage(files: Files, path: Path, ranges: Iterable[DamagedRange]) -> None:
    """Raises StoreFailed, and then the old file is still there."""
    write_sealed(files, path, _Document(sorted(ranges)))


def merged(ranges: Iterable[DamagedRange]) -> list[DamagedRange]:
    """The same bytes, each once: ranges that overlap or touch become one, with the first one's reason."""
    joined: list[DamagedRange] = []
    for each in sorted(ranges):
        last = joined[-1] if joined else None
        if last is not None and each.physical_offset <= last.end:
            joined[-1] = DamagedRange(last.physical_offset, max(last.end, each.end) - last.physical_offset, last.reason)
        else:
            joined.append(each)
    return joined


def merged_by_file(ranges: Iterable[DamagedRange], file_size: int) -> list[DamagedRange]:
    """As `merged`, but what lies in several files of the log stays one range for each file."""
    by_file: dict[int, list[DamagedRange]] = {}
    for each in ranges:
        begin = each.physical_offset
        while begin < each.end:
            end = min(each.end, begin + file_size - begin % file_size)
            by_file.setdefault(begin // file_size, []).append(DamagedRange(begin, end - begin, each.reason))
            begin = end
    return [joined for number in sorted(by_file) for joined in merged(by_file[number])]
