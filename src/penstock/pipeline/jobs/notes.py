"""What a job notes of its micro-batches: a small file each, so that a batch that comes again is known.

    <folder>/00000012.json    what became of batch 12

Written by whoever runs the batch, one at a time; replaced as a whole, and with a checksum. A batch is replayed by Spark
if it was killed before the checkpoint had it, so its note may be there already: it says how far the batch came.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from penstock.errors import BadStore, StoreInUse
from penstock.store.files import Files
from penstock.store.sealed_json import read_sealed, write_sealed

Note = TypeVar("Note")


class Notes(Generic[Note]):
    """The notes of one job in one folder."""

    def __init__(self, folder: Path, kind: type[Note]) -> None:
        self.folder = folder
        self._kind = kind
        self._files = Files()

    def find(self, number: int) -> Note | None:
        """Raises BadStore for a note that cannot be read: nobody knows then how far the batch came."""
        path = self._path(number)
        found = read_sealed(self._files, path, self._kind)
        if found is None and self._files.exists(path):
            raise BadStore("this note of a batch cannot be read; begin again in another folder", path=path)
        return found

    def write(self, number: int, note: Note) -> None:
        """On disk when this returns. Raises StoreFailed."""
        self._files.make_folder(self.folder)
        write_sealed(self._files, self._path(number), note)

    def all(self) -> Iterator[tuple[int, Note]]:
        """Raises BadStore as `find` does."""
        for name in self._files.names(self.folder):
            if name.endswith(".json"):
                note = self.find(int(name.removesuffix(".json")))
                if note is not None:
                    yield int(name.removesuffix(".json")), note

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.json"


def query_of(checkpoint: Path) -> str:
    """The id of the query that a checkpoint belongs to; Spark writes it before the first batch. Raises OSError."""
    return str(msgspec.json.decode((checkpoint / "metadata").read_bytes())["id"])


@contextmanager
def held(folder: Path, busy: str) -> Iterator[None]:
    """Makes a folder that is there for one run at a time. Raises StoreInUse with what `busy` says, StoreFailed."""
    files = Files()
    files.make_folder(folder)
    try:
        lock = files.lock(folder / "lock")
    except StoreInUse:
        raise StoreInUse(busy, path=folder) from None
    try:
        yield
    finally:
        lock.release()
