"""The paths of a store's files, and checks before a process owns a store.

`path_below` is the one function that makes a path from a topic or another name that came from the network or a file.

`refuse_other_engines` refuses a store with data of RocketMQ 5 that Penstock cannot maintain: queues in RocksDB, or
timed messages. Penstock can read such a store, but must not own it: the queues in RocksDB would lack new messages, and
the timed messages would never be delivered. `allow_many_files` raises the process's limit of open files.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import BadStore
from penstock.store.files.file_io import Files

if TYPE_CHECKING:  # a worker that reads files needs no settings
    from penstock.store.settings import Settings


def path_below(folder: Path, *names: str | int) -> Path:
    """Returns the path of nested names below a folder. Raises BadStore if a name is not the plain name of one file."""
    for name in map(str, names):
        if name in ("", ".", "..") or "/" in name or "\0" in name or len(name.encode("utf-8", "replace")) > 255:
            raise BadStore(f"{name[:80]!r} cannot be the name of a file or folder; choose another name", path=folder)
    return folder.joinpath(*map(str, names))


class Layout(msgspec.Struct, frozen=True):
    """The paths of one store."""

    root: Path
    commit_log: Path

    @classmethod
    def of(cls, root: Path, settings: Settings) -> Layout:
        elsewhere = settings.store_path_commit_log
        return cls(root, Path(elsewhere) if elsewhere else root / "commitlog")

    @property
    def consume_queue(self) -> Path:
        return self.root / "consumequeue"

    @property
    def consume_queue_ext(self) -> Path:
        return self.root / "consumequeue_ext"

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        return self.root / "abort"

    @property
    def epochs(self) -> Path:
        return self.root / "epochFileCheckpoint"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def dispatched(self) -> Path:
        return self.root / "penstock" / "dispatched.json"

    @property
    def delivered(self) -> Path:
        return self.root / "penstock" / "delivered.json"

    @property
    def checked(self) -> Path:
        return self.root / "penstock" / "checked.json"

    @property
    def dispatch_terms(self) -> Path:
        return self.root / "penstock" / "dispatch.json"

    @property
    def dispatch_end(self) -> Path:
        return self.root / "penstock" / "dispatch.end"

    @property
    def dispatch_done(self) -> Path:
        return self.root / "penstock" / "dispatch.done"

    @property
    def dispatch_lock(self) -> Path:
        return self.root / "penstock" / "dispatch.lock"

    @property
    def damaged(self) -> Path:
        return self.root / "penstock" / "damaged.json"

    @property
    def deleted_topics(self) -> Path:
        return self.root / "penstock" / "deleted_topics.json"

    @property
    def replica(self) -> Path:
        return self.root / "penstock" / "replica.json"

    @property
    def cut(self) -> Path:
        return self.root / "penstock" / "cut.json"

    @property
    def gaps(self) -> Path:
        return self.root / "penstock" / "gaps.json"

    @property
    def failover(self) -> Path:
        return self.root / "penstock" / "failover.json"

    @property
    def walked(self) -> Path:
        return self.root / "penstock" / "walked.json"

    @property
    def quarantine(self) -> Path:
        return self.root / "penstock" / "quarantine"

    @property
    def staging(self) -> Path:
        return self.root / "penstock" / "staging"

    @property
    def swap(self) -> Path:
        return self.root / "penstock" / "swap.json"

    @property
    def sink(self) -> Path:
        return self.root / "penstock" / "sink"

    @property
    def sink_journal(self) -> Path:
        return self.sink / "journal.json"

    @property
    def sink_marks(self) -> Path:
        return self.sink / "marks"

    @property
    def sink_staged(self) -> Path:
        return self.sink / "staged"

    @property
    def sink_lock(self) -> Path:
        return self.sink / "lock"


_ROCKSDB: Final = "consumequeue_rocksdb"
_TIMER_LOG: Final = "timerlog"


def refuse_other_engines(files: Files, layout: Layout) -> None:
    """Raises BadStore if RocketMQ 5's folder of RocksDB queues or of timed messages is not empty."""
    rocksdb = layout.root / _ROCKSDB
    if files.is_folder(rocksdb) and files.names(rocksdb):
        raise BadStore(
            "RocketMQ 5 keeps this store's queues in RocksDB, which Penstock does not write; move this folder "
            "elsewhere, and the queues are built from the log",
            path=rocksdb,
        )
    timed = layout.root / _TIMER_LOG
    if files.is_folder(timed) and files.names(timed):
        raise BadStore(
            "RocketMQ 5 keeps messages here that it delivers at a set time, which Penstock would never do; let "
            "RocketMQ 5 deliver them first, or move this folder elsewhere and do without them",
            path=timed,
        )


def allow_many_files() -> None:
    """Raises the soft limit of open files to the hard limit. Each mapped file takes two descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
