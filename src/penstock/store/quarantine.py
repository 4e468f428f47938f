"""What is cut off or replaced is kept: `penstock/quarantine/<time>/`, which RocketMQ never looks into.

`keep` writes a copy and syncs it, before the original may be changed; the bytes go straight from their map to the file.
`take` moves a file or a folder, under the path that it had in the store. Either leaves, after a crash, the thing where
it was, or in the quarantine, or (a copy) in both. Nothing here is ever removed: that is left to people.

There is a limit, `quarantineMaxBytes`. Before it is exceeded, whoever opened the store is asked, and if they do not
agree, nothing is changed: so who is going to keep much asks for all of it first (`make_room`). One thread uses it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import msgspec

from penstock.errors import StoreFailed
from penstock.store.disk_errors import disk_refused
from penstock.store.files import Files

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
