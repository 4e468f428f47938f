"""The spec of an export, its folder, and the files of its micro-batches.

    <to>/topic=orders/date=2026-11-16/batch-00000001-00000.parquet    the data, in the export's format
    <to>/_bad/topic=orders/...                                        quarantine, with `reason`
    <to>/_penstock/export.json                                        the spec, which a later run must repeat
    <to>/_penstock/{lock,checkpoint,batches,staged}                   the progress

The lock admits one process at a time. Readers of Parquet and table folders ignore names that begin with an underscore.
A file's target depends only on the batch and the folder, so a retry finds the files that the first attempt moved.
Moving is idempotent. To count rows, the export reads only the footers of Parquet files, and the lines of JSON files.
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
from penstock.pipeline.jobs.job_input import locked_folder
from penstock.store.files.atomic_files import read_checksummed, write_checksummed
from penstock.store.files.file_io import Files

# -- spec and folder -------------------------------------------------------------------------------------------------

FORMATS: Final = ("parquet", "json", "delta", "iceberg")
BAD: Final = "_bad"


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of an export. `since_ms` and `until_ms` (exclusive) limit the store time, in epoch milliseconds."""

    to: str
    format: str = "parquet"
    topics: tuple[str, ...] = ()
    """The topics to export. If empty, every topic except the broker's own."""
    since_ms: int | None = None
    until_ms: int | None = None
    decode: Decode | None = None
    once: bool = False
    """Whether to export the current messages once, without a checkpoint for later runs."""
    allow_loss: bool = False
    """Whether to continue if messages were deleted before they were exported."""
    catalog: str = ""
    """For Iceberg, a catalog from pyiceberg's configuration. The default is a catalog in the export's folder."""
    table: str = "penstock.messages"
    """For Iceberg, the table's name in its catalog."""

    def check(self) -> None:
        """Raises BadSettings for an invalid or contradictory spec, or a folder that cannot hold an export."""
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
        self._spec_path = self.own / "export.json"

    def check(self) -> None:
        """Raises BadSettings if the folder cannot hold an export."""
        if self.root.exists() and not self.root.is_dir():
            raise BadSettings(f"--to {self.root}: that is a file; name a folder")
        for folder in self.root.parents:
            if (folder / "commitlog").is_dir():
                raise BadSettings(f"--to {self.root}: that is inside the store {folder}; export to a folder elsewhere")
        if self.root.is_dir() and any(self.root.iterdir()) and not self.own.exists():
            raise BadSettings(f"--to {self.root}: this folder holds something else; export to a new one")

    @contextmanager
    def owned(self, spec: Export) -> Iterator[None]:
        """Locks the folder during the block. Writes the spec, or compares it with the spec of the first run.

        Raises StoreFailed, StoreInUse if another run has the lock, and BadSettings if the specs differ.
        """
        files = Files()
        self.check()
        with locked_folder(self.own, "another export into this folder is running; wait for it"):
            before = read_checksummed(files, self._spec_path, Export)
            if before is None:
                write_checksummed(files, self._spec_path, spec)
            elif difference := _difference(before, spec):
                raise BadSettings(
                    f"--to {self.root}: this export was started with a different {difference}; "
                    "repeat the old one, or use a new folder"
                )
            yield

    def spec(self) -> Export:
        """Returns the spec of the export in this folder. Raises BadSettings if there is no export."""
        spec = read_checksummed(Files(), self._spec_path, Export)
        if spec is None:
            raise BadSettings(
                f"{self.root}: there is no export in this folder; "
                "name the folder given to `penstock pipeline export --to`"
            )
        return spec


def _difference(before: Export, now: Export) -> str:
    """Returns the first option that must be equal and is not, or "" if the specs match."""
    for name in ("format", "topics", "since_ms", "until_ms", "decode", "once", "catalog", "table"):
        if getattr(before, name) != getattr(now, name):
            return f"--{name.removesuffix('_ms').removesuffix('s' if name == 'topics' else '')}"
    return ""


# -- files of a batch ------------------------------------------------------------------------------------------------

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_CHUNK: Final = 1 << 20


class ExportFile(msgspec.Struct, frozen=True):
    """One file of an export. `staged` and `path`, its target, are relative to the export's folder."""

    staged: str
    path: str
    rows: int
    size: int
    topic: str
    date: str
    """The store date in UTC; empty if unknown."""
    is_bad: bool


class ExportedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch log's entry for a micro-batch. Its fields are the format on disk."""

    number: int
    query: str
    files: tuple[ExportFile, ...]
    rows: int
    undecoded: int
    unread: int
    done: bool = False
    """Whether the files are moved and committed."""

    @property
    def good(self) -> list[ExportFile]:
        return [file for file in self.files if not file.is_bad]

    def as_done(self) -> ExportedBatch:
        return msgspec.structs.replace(self, done=True)


def staged_files(root: Path, staged: Path, number: int, suffix: str, *, is_bad: bool) -> Iterator[ExportFile]:
    """Yields the files that Spark wrote into the folder `staged`, with their targets. Syncs them to disk."""
    counts: dict[Path, int] = {}
    for path in sorted(staged.rglob(f"part-*{suffix}")):
        folder = path.parent.relative_to(staged)
        values = dict(part.removeprefix("_of_").split("=", 1) for part in folder.parts)
        target = Path(BAD if is_bad else "", *(part.removeprefix("_of_") for part in folder.parts))
        ordinal = counts[folder] = counts.get(folder, -1) + 1
        _sync(path)
        yield ExportFile(
            staged=path.relative_to(root).as_posix(),
            path=(target / f"batch-{number:08d}-{ordinal:05d}{suffix}").as_posix(),
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
    """Moves staged files to their targets. Idempotent. Raises BadStore if a file is in neither place."""
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
    """Removes a staged batch's folder. After `move`, it has only Spark's marker files and empty folders."""
    shutil.rmtree(staged, ignore_errors=True)
