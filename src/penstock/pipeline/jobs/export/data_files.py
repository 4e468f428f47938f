"""The files of a micro-batch: found where Spark has staged them, named, synced, and moved to their places.

A file's place follows from the batch and the folder, so that a second try finds what the first has moved. Nothing is
overwritten and nothing is read but footers (and the lines of JSON, which are counted).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from penstock.errors import BadStore
from penstock.pipeline.jobs.export.spec import BAD
from penstock.store.files import Files

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_CHUNK: Final = 1 << 20


class DataFile(msgspec.Struct, frozen=True):
    """One file of an export; paths are relative to its folder."""

    staged: str
    path: str
    rows: int
    size: int
    topic: str
    date: str
    """The day of storing in UTC; empty where nobody knows it."""
    is_bad: bool


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The note of a micro-batch."""

    number: int
    query: str
    files: tuple[DataFile, ...]
    rows: int
    undecoded: int
    unread: int
    done: bool = False
    """Moved and committed."""

    @property
    def good(self) -> list[DataFile]:
        return [file for file in self.files if not file.is_bad]

    def finished(self) -> Batch:
        return msgspec.structs.replace(self, done=True)


def staged_files(root: Path, staged: Path, number: int, suffix: str, *, is_bad: bool) -> Iterator[DataFile]:
    """What Spark has written into a staged folder, with the places that its files will have. Syncs them."""
    counts: dict[Path, int] = {}
    for path in sorted(staged.rglob(f"part-*{suffix}")):
        folder = path.parent.relative_to(staged)
        values = dict(part.removeprefix("_of_").split("=", 1) for part in folder.parts)
        place = Path(BAD if is_bad else "", *(part.removeprefix("_of_") for part in folder.parts))
        ordinal = counts[folder] = counts.get(folder, -1) + 1
        _sync(path)
        yield DataFile(
            staged=path.relative_to(root).as_posix(),
            path=(place / f"batch-{number:08d}-{ordinal:05d}{suffix}").as_posix(),
            rows=_count(path),
            size=path.stat().st_size,
            topic=_value(values.get("topic", "")),
            date=_value(values.get("date", "")),
            is_bad=is_bad,
        )


def _value(text: str) -> str:
    return "" if text == NO_VALUE else unquote(text)


def _count(path: Path) -> int:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def move(root: Path, files: Sequence[DataFile]) -> None:
    """Brings files to their places; what is there already stays. Raises BadStore for one that is nowhere."""
    disk = Files()
    folders = set()
    for file in files:
        source, target = root / file.staged, root / file.path
        if source.exists():
            disk.make_folder(target.parent)
            disk.rename(source, target)
            folders.add(target.parent)
        elif not target.exists():
            raise BadStore("a file of a batch that was written is gone; export to a new folder", path=target)
    for folder in folders:
        disk.sync_folder(folder)


def clear(staged: Path) -> None:
    """Removes what is left of a staged batch: Spark's own marks, and empty folders."""
    shutil.rmtree(staged, ignore_errors=True)
