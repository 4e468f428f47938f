"""What is exported, and where to: the wish of a caller, and the folder that a wish has made its own.

    <to>/topic=orders/date=2026-11-16/batch-00000001-00000.parquet    the data, whatever the format's own files are
    <to>/_bad/topic=orders/...                                        what could not be read or decoded, with `reason`
    <to>/_penstock/export.json                                        the wish, which a later run must repeat
    <to>/_penstock/{lock,checkpoint,batches,staged}                   how far it is

One process at a time, by the lock. Readers of lakes pass over names that begin with an underscore.


The files of a micro-batch: found where Spark has staged them, named, synced, and moved to their places.

A file's place follows from the batch and the folder, so that a second try finds what the first has moved. Nothing is
overwritten and nothing is read but footers (and the lines of JSON, which are counted).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from penstock.errors import BadSettings, BadStore
from penstock.pipeline.decode import Decode
from penstock.pipeline.jobs.common import locked_folder
from penstock.store.atomic_files import read_sealed, write_sealed
from penstock.store.io import Files

FORMATS: Final = ("parquet", "json", "delta", "iceberg")
BAD: Final = "_bad"


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A wish. Times are epoch milliseconds of storing, the end exclusive."""

    to: str
    format: str = "parquet"
    topics: tuple[str, ...] = ()
    """None: every topic but the broker's own."""
    since_ms: int | None = None
    until_ms: int | None = None
    decode: Decode | None = None
    once: bool = False
    """What is there now and never again, instead of going on where the last run ended."""
    allow_loss: bool = False
    """Goes on where messages were deleted before they were exported."""
    catalog: str = ""
    """Iceberg: a catalog of pyiceberg's configuration; otherwise one of its own in the folder."""
    table: str = "penstock.messages"
    """Iceberg: the table's name in its catalog."""

    def check(self) -> None:
        """Raises BadSettings."""
        if self.format not in FORMATS:
            raise BadSettings(f"--format '{self.format}': it must be one of {', '.join(FORMATS)}")
        if "://" in self.to:
            raise BadSettings(f"--to {self.to}: it must be a folder that this machine and Spark's see, not an address")
        if self.until_ms is not None and not self.once:
            raise BadSettings("--until ends an export for good: give --once with it")
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise BadSettings("the export ends before it begins: --until must be later than --since")
        if self.catalog and self.format != "iceberg":
            raise BadSettings("--catalog is for --format iceberg")
        if self.table.count(".") < 1:
            raise BadSettings(f"--table '{self.table}': it must have a namespace, as in penstock.messages")
        ExportFolder(self.to).check()

    @property
    def suffix(self) -> str:
        return ".json" if self.format == "json" else ".parquet"


class ExportFolder:
    """The folder of an export."""

    def __init__(self, to: str) -> None:
        self.root = Path(to).absolute()
        self.own = self.root / "_penstock"
        self.checkpoint = self.own / "checkpoint"
        self.batches = self.own / "batches"
        self.staged = self.own / "staged"
        self._spec = self.own / "export.json"

    def check(self) -> None:
        """Raises BadSettings if no export can be here."""
        if self.root.exists() and not self.root.is_dir():
            raise BadSettings(f"--to {self.root}: that is a file, and a folder is needed")
        for folder in self.root.parents:
            if (folder / "commitlog").is_dir():
                raise BadSettings(f"--to {self.root}: that lies in the store {folder}; export to a folder elsewhere")
        if self.root.is_dir() and any(self.root.iterdir()) and not self.own.exists():
            raise BadSettings(f"--to {self.root}: there is something else in this folder; export to a new one")

    @contextmanager
    def owned(self, spec: Export) -> Iterator[None]:
        """Makes the folder this wish's own, or goes on with it. Raises BadSettings, StoreInUse, StoreFailed."""
        files = Files()
        self.check()
        with locked_folder(self.own, "another export into this folder is running; wait for it"):
            before = read_sealed(files, self._spec, Export)
            if before is None:
                write_sealed(files, self._spec, spec)
            elif difference := _difference(before, spec):
                raise BadSettings(
                    f"--to {self.root}: this export was begun with another {difference}; repeat it, or use a new folder"
                )
            yield

    def spec(self) -> Export:
        """What the export in this folder is. Raises BadSettings if there is none."""
        found = read_sealed(Files(), self._spec, Export)
        if found is None:
            raise BadSettings(
                f"{self.root}: there is no export in this folder; "
                "name one that `penstock pipeline export --to` was given"
            )
        return found


def _difference(before: Export, now: Export) -> str:
    """The first thing that two wishes for the same folder must have in common and have not."""
    for name in ("format", "topics", "since_ms", "until_ms", "decode", "once", "catalog", "table"):
        if getattr(before, name) != getattr(now, name):
            return f"--{name.removesuffix('_ms').removesuffix('s' if name == 'topics' else '')}"
    return ""


NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_CHUNK: Final = 1 << 20


class ExportFile(msgspec.Struct, frozen=True):
    """One file of an export; paths are relative to its folder."""

    staged: str
    path: str
    rows: int
    size: int
    topic: str
    date: str
    """The day of storing in UTC; empty where nobody knows it."""
    is_bad: bool


class ExportedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The note of a micro-batch."""

    number: int
    query: str
    files: tuple[ExportFile, ...]
    rows: int
    undecoded: int
    unread: int
    done: bool = False
    """Moved and committed."""

    @property
    def good(self) -> list[ExportFile]:
        return [file for file in self.files if not file.is_bad]

    def as_done(self) -> ExportedBatch:
        return msgspec.structs.replace(self, done=True)


def staged_files(root: Path, staged: Path, number: int, suffix: str, *, is_bad: bool) -> Iterator[ExportFile]:
    """What Spark has written into a staged folder, with the places that its files will have. Syncs them."""
    counts: dict[Path, int] = {}
    for path in sorted(staged.rglob(f"part-*{suffix}")):
        folder = path.parent.relative_to(staged)
        values = dict(part.removeprefix("_of_").split("=", 1) for part in folder.parts)
        place = Path(BAD if is_bad else "", *(part.removeprefix("_of_") for part in folder.parts))
        ordinal = counts[folder] = counts.get(folder, -1) + 1
        _sync(path)
        yield ExportFile(
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


def move(root: Path, files: Sequence[ExportFile]) -> None:
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
