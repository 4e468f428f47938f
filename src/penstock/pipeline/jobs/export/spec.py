"""What is exported, and where to: the wish of a caller, and the folder that a wish has made its own.

    <to>/topic=orders/date=2026-11-16/batch-00000001-00000.parquet    the data, whatever the format's own files are
    <to>/_bad/topic=orders/...                                        what could not be read or decoded, with `reason`
    <to>/_penstock/export.json                                        the wish, which a later run must repeat
    <to>/_penstock/{lock,checkpoint,batches,staged}                   how far it is

One process at a time, by the lock. Readers of lakes pass over names that begin with an underscore.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BadSettings
from penstock.pipeline.decode import Decode
from penstock.pipeline.jobs.notes import held
from penstock.store.files import Files
from penstock.store.sealed_json import read_sealed, write_sealed

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
        self.notes = self.own / "batches"
        self.staged = self.own / "staged"
        self._wish = self.own / "export.json"

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
    def owned(self, wish: Export) -> Iterator[None]:
        """Makes the folder this wish's own, or goes on with it. Raises BadSettings, StoreInUse, StoreFailed."""
        files = Files()
        self.check()
        with held(self.own, "another export into this folder is running; wait for it"):
            before = read_sealed(files, self._wish, Export)
            if before is None:
                write_sealed(files, self._wish, wish)
            elif difference := _difference(before, wish):
                raise BadSettings(
                    f"--to {self.root}: this export was begun with another {difference}; repeat it, or use a new folder"
                )
            yield

    def wish(self) -> Export:
        """What the export in this folder is. Raises BadSettings if there is none."""
        found = read_sealed(Files(), self._wish, Export)
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
