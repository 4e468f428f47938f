"""A mark: how far somebody has come, in a small file that others look at all the time.

    OFFSET  SIZE  DESCRIPTION (big-endian)
    0       8     "PENMARK1"
    8       8     position: a physical offset
    16      8     safe: of `dispatch.end` up to where the log is on disk; of `dispatch.done` the store time of the
                  newest record up to which queues and index are on disk
    24      8     boot: tells one run of the machine from the next
    32      4     CRC-32 of the bytes 8 to 31

The file is written in place, by one process, and never synced: it tells the living. Whoever reads half a mark sees that
by its CRC, and looks again. It is no longer true after the machine has failed, which `boot` tells.


The terms of external dispatch: `penstock/dispatch.json`, and the lock of the job.

The file is there while dispatch is external. It holds what the job needs to know of the store's settings, so that it
needs none of its own. Only who holds the job's lock makes or removes it, so a job that has the lock and finds the file
knows that no store dispatches for itself; the store that only appends merely replaces it with one that says the same
or more. A crash leaves the old one or the new one.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.errors import BadStore, StoreInUse
from penstock.store.atomic_files import read_checksummed, write_checksummed
from penstock.store.dispatch_state import FileSizes, read_state
from penstock.store.io import FileMap, Files
from penstock.store.layout import Layout
from penstock.store.lock import StoreLock
from penstock.store.settings import Settings

_MAGIC: Final = b"PENMARK1"
_BODY: Final = struct.Struct(">qqq")
_SIZE: Final = len(_MAGIC) + _BODY.size + 4
_TRIES: Final = 100
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class DispatchMark(NamedTuple):
    """What a mark says."""

    position: int
    safe: int = 0
    boot: int = 0

    @property
    def is_of_this_boot(self) -> bool:
        """Whether all that was written before it is still there, synced or not."""
        return self.boot == boot_number()


@cache
def boot_number() -> int:
    """A number that changes when the machine is started anew; 0, which no mark has, where there is none."""
    try:
        return int(_BOOT_ID.read_text().replace("-", "")[:15], 16) or 1
    except (OSError, ValueError):
        return 0


def _parsed(data: bytes) -> DispatchMark | None:
    body = data[len(_MAGIC) : len(_MAGIC) + _BODY.size]
    if len(data) != _SIZE or data[: len(_MAGIC)] != _MAGIC or zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
        return None
    return DispatchMark(*_BODY.unpack(body))


def read_mark(files: Files, path: Path) -> DispatchMark | None:
    """What a mark says now; None if there is none, or garbage."""
    for _ in range(_TRIES):
        try:
            found = _parsed(files.read_bytes(path))
        except FileNotFoundError:
            return None
        if found is not None:
            return found
    return None


class MarkFile:
    """A mark that stays mapped: for who writes it, and for who looks often. One thread writes."""

    def __init__(self, files: Files, path: Path) -> None:
        """Makes the file if it is not there. Raises StoreFailed or OSError."""
        if files.exists(path) and files.size(path) != _SIZE:
            files.unlink(path)
        self._map: FileMap = files.open_map(path) if files.exists(path) else files.create_map(path, _SIZE)

    def write(self, position: int, safe: int) -> None:
        """Raises StoreFailed."""
        body = _BODY.pack(position, safe, boot_number() or -1)
        self._map.write(0, bytearray(_MAGIC + body + zlib.crc32(body).to_bytes(4, "big")))

    def read(self) -> DispatchMark | None:
        """None if nothing, or garbage, stands there."""
        for _ in range(_TRIES):
            found = _parsed(bytes(self._map.view))
            if found is not None:
                return found
        return None

    def close(self) -> None:
        self._map.close()


class Terms(msgspec.Struct, frozen=True):
    """What queues and index are built by."""

    sizes: FileSizes
    delay_levels: str
    index: bool
    commit_log: str
    """The log's folder, empty if it is in the store's."""

    @classmethod
    def of(cls, settings: Settings) -> Terms:
        return cls(
            FileSizes.of(settings),
            settings.message_delay_level,
            settings.message_index_enable,
            str(settings.store_path_commit_log or ""),
        )

    def settings(self, root: Path) -> Settings:
        """The settings of the job."""
        return Settings(
            store_path_root_dir=root,
            store_path_commit_log=Path(self.commit_log) if self.commit_log else None,
            mapped_file_size_commit_log=self.sizes.commit_log,
            mapped_file_size_consume_queue=self.sizes.consume_queue,
            max_hash_slot_num=self.sizes.hash_slots,
            max_index_num=self.sizes.index_items,
            message_delay_level=self.delay_levels,
            message_index_enable=self.index,
        )


def read_terms(files: Files, layout: Layout) -> Terms | None:
    """None if dispatch is inline, or the file is garbage."""
    return read_checksummed(files, layout.dispatch_terms, Terms)


def needed_terms(files: Files, layout: Layout) -> Terms:
    """Raises BadStore where there are none."""
    terms = read_terms(files, layout)
    if terms is None:
        raise BadStore(
            "the queues of this store are built by the store itself; start it with dispatch=external first",
            path=layout.root,
        )
    return terms


def is_external(files: Files, layout: Layout) -> bool:
    """Whether queues and index were last in the hands of a job."""
    return files.exists(layout.dispatch_terms)


def agree(files: Files, layout: Layout, terms: Terms) -> None:
    """Raises StoreFailed, and then the old file is still there."""
    if read_terms(files, layout) != terms:
        write_checksummed(files, layout.dispatch_terms, terms)


def end_terms(files: Files, layout: Layout) -> None:
    """Dispatch is inline from now on: the marks go, and the terms last. Raises OSError, and can be done again."""
    for path in (layout.dispatch_end, layout.dispatch_done, layout.dispatch_terms):
        if files.exists(path):
            files.unlink(path)
    files.sync_folder(layout.dispatch_terms.parent)


def built_position(files: Files, layout: Layout) -> int:
    """Up to where queues and index can be relied on: what the job told, if the machine runs on since; else its note."""
    state, done = read_state(files, layout.dispatched), read_mark(files, layout.dispatch_done)
    position = 0 if state is None else state.position
    return max(position, done.position) if done is not None and done.is_of_this_boot else position


def take_job_lock(files: Files, layout: Layout) -> StoreLock:
    """Makes queues and index this process's own. Raises StoreInUse with one sentence while somebody else has them."""
    try:
        return files.lock(layout.dispatch_lock)
    except StoreInUse:
        raise _has_job(files, layout) from None


def _has_job(files: Files, layout: Layout) -> StoreInUse:
    owner = files.lock_owner(layout.dispatch_lock)
    who = f" (process {owner})" if owner > 0 else ""
    return StoreInUse(
        f"a `penstock pipeline dispatch` job, or a repair{who}, "
        "has the queues and the index of this store in its hands; "
        "wait for it, or stop it first",
        path=layout.root,
    )


def refuse_while_job_runs(files: Files, layout: Layout) -> None:
    """Raises StoreInUse if somebody has queues and index in its hands: for who only looks."""
    if files.exists(layout.dispatch_lock) and files.lock_owner(layout.dispatch_lock):
        raise _has_job(files, layout)
