"""The files that a store and its dispatch job share: the agreement, two marks, and the job's lock.

`dispatch.json`, the agreement, exists while dispatch is external. It holds the store's settings that the job needs.
Only the holder of the job's lock, the job or a starting store, creates or removes it. So a job that holds the lock and
sees the file knows that the store does not dispatch inline. A store with external dispatch may replace the settings in
it without that lock. The file is written atomically: a crash leaves the old file or the new one.

The store publishes the end of its log in the mark `dispatch.end`, the job its progress in `dispatch.done`:

    OFFSET  SIZE  DESCRIPTION (big-endian)
    0       8     "PENMARK1"
    8       8     position: a physical offset
    16      8     safe: in `dispatch.end` the log position that is on disk; in `dispatch.done` the store time of the
                  newest record whose units and keys are on disk
    24      8     boot: a number that identifies this boot of the machine
    32      4     CRC-32 of the bytes 8 to 31

Each mark has one writer, which overwrites it in place and never syncs it. A reader that meets a torn write sees a wrong
CRC and reads again. A mark of an earlier boot is not valid: what it reports may have been lost.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.errors import BadStore, StoreInUse
from penstock.store.dispatch_checkpoint import FileSizes, read_state
from penstock.store.files.atomic_files import read_checksummed, write_checksummed
from penstock.store.files.file_io import FileMap, Files
from penstock.store.files.layout import Layout
from penstock.store.files.lock import StoreLock
from penstock.store.settings import Settings

_MAGIC: Final = b"PENMARK1"
_BODY: Final = struct.Struct(">qqq")
_SIZE: Final = len(_MAGIC) + _BODY.size + 4
_TRIES: Final = 100
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class DispatchMark(NamedTuple):
    """The content of a mark."""

    position: int
    safe: int = 0
    boot: int = 0

    @property
    def is_of_this_boot(self) -> bool:
        """Whether everything that was written before the mark still exists, synced or not."""
        return self.boot == boot_number()


@cache
def boot_number() -> int:
    """Returns a number that changes at each boot; 0 if the system has no boot id. No mark contains 0."""
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
    """Reads a mark; returns None if the file is missing or invalid."""
    for _ in range(_TRIES):
        try:
            mark = _parsed(files.read_bytes(path))
        except FileNotFoundError:
            return None
        if mark is not None:
            return mark
    return None


class MarkFile:
    """A mark that stays mapped, for its writer and for frequent readers. One thread may write."""

    def __init__(self, files: Files, path: Path) -> None:
        """Creates the file if it is missing. Raises StoreFailed or OSError."""
        if files.exists(path) and files.size(path) != _SIZE:
            files.unlink(path)
        self._map: FileMap = files.open_map(path) if files.exists(path) else files.create_map(path, _SIZE)

    def write(self, position: int, safe: int) -> None:
        """Writes `position` and `safe` (see above), and the number of this boot. Raises StoreFailed."""
        body = _BODY.pack(position, safe, boot_number() or -1)
        self._map.write(0, bytearray(_MAGIC + body + zlib.crc32(body).to_bytes(4, "big")))

    def read(self) -> DispatchMark | None:
        """Reads the mark; returns None if the file holds no valid one."""
        for _ in range(_TRIES):
            mark = _parsed(bytes(self._map.view))
            if mark is not None:
                return mark
        return None

    def close(self) -> None:
        self._map.close()


class DispatchAgreement(msgspec.Struct, frozen=True):
    """The settings that determine how queues and index are built."""

    sizes: FileSizes
    delay_levels: str
    index: bool
    commit_log: str
    """The log's folder; empty if it is the default one."""

    @classmethod
    def of(cls, settings: Settings) -> DispatchAgreement:
        return cls(
            FileSizes.of(settings),
            settings.message_delay_level,
            settings.message_index_enable,
            str(settings.store_path_commit_log or ""),
        )

    def settings(self, root: Path) -> Settings:
        """Returns the settings for the job."""
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


def read_agreement(files: Files, layout: Layout) -> DispatchAgreement | None:
    """Reads `dispatch.json`; returns None if dispatch is inline, or if the file is invalid."""
    return read_checksummed(files, layout.dispatch_terms, DispatchAgreement)


def require_agreement(files: Files, layout: Layout) -> DispatchAgreement:
    """Returns the agreement. Raises BadStore if `dispatch.json` is missing (dispatch is inline) or invalid."""
    agreement = read_agreement(files, layout)
    if agreement is None:
        raise BadStore(
            "this store builds its queues itself; start it with dispatch=external first",
            path=layout.root,
        )
    return agreement


def is_external(files: Files, layout: Layout) -> bool:
    """Whether a job was the last owner of queues and index."""
    return files.exists(layout.dispatch_terms)


def write_agreement(files: Files, layout: Layout, agreement: DispatchAgreement) -> None:
    """Writes `dispatch.json`. Idempotent. Raises StoreFailed; the old file then stays."""
    if read_agreement(files, layout) != agreement:
        write_checksummed(files, layout.dispatch_terms, agreement)


def remove_agreement(files: Files, layout: Layout) -> None:
    """Makes dispatch inline: removes the marks, then the agreement. Idempotent. Raises OSError."""
    for path in (layout.dispatch_end, layout.dispatch_done, layout.dispatch_terms):
        if files.exists(path):
            files.unlink(path)
    files.sync_folder(layout.dispatch_terms.parent)


def built_position(files: Files, layout: Layout) -> int:
    """Returns the log position up to which queues and index are complete and not lost in a reboot.

    That is the position in the dispatch note, or a higher one in a `dispatch.done` that was written in this boot.
    """
    state, done = read_state(files, layout.dispatched), read_mark(files, layout.dispatch_done)
    position = 0 if state is None else state.position
    return max(position, done.position) if done is not None and done.is_of_this_boot else position


def acquire_job_lock(files: Files, layout: Layout) -> StoreLock:
    """Makes this process the owner of queues and index. Raises StoreInUse while another process owns them."""
    try:
        return files.lock(layout.dispatch_lock)
    except StoreInUse:
        raise _job_is_running(files, layout) from None


def _job_is_running(files: Files, layout: Layout) -> StoreInUse:
    owner = files.lock_owner(layout.dispatch_lock)
    who = f" (process {owner})" if owner > 0 else ""
    return StoreInUse(
        f"a `penstock pipeline dispatch` job, or a repair{who}, owns the queues and the index of this store; "
        "wait for it, or stop it first",
        path=layout.root,
    )


def refuse_while_job_runs(files: Files, layout: Layout) -> None:
    """Raises StoreInUse if a job owns queues and index; takes no lock."""
    if files.exists(layout.dispatch_lock) and files.lock_owner(layout.dispatch_lock):
        raise _job_is_running(files, layout)
