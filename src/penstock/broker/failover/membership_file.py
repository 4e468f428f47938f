"""`penstock/failover.json` in a store: its id in the set, and whether it may have lost acknowledged messages.

A replica is *tainted* if it flushed asynchronously, its process did not stop cleanly, and the machine has booted since:
what it had acknowledged may have been in the page cache only. The file itself says that a process runs, how it flushes
and since which boot, until that process has stopped cleanly: a start that failed, or a tool that opened and closed the
store meanwhile, does not change that.

A replica *lacks* messages if its log ends before what its checkpoint says was acknowledged by the whole set, or before
the start of the newest epoch in whose sync set it was, and no power loss explains that: its log is lost, or its disk is
not mounted. An epoch in whose sync set it never was proves nothing: a slave notes all epochs of its master before it
copies their bytes.

Both last until the replica is in a sync set of a later epoch, to which its master has added it: then it has every
acknowledged message again. A replica that lacks messages can prove that earlier, in the same epoch (see `seen`). That
the set of this epoch names it is no proof: its master may have decided so before the log was lost, and the write may
have been late. The file is written by this module only, before the replica publishes anything. A crash leaves the old
one or the new one.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Final

import msgspec

from penstock.broker.failover.consensus_engine import State
from penstock.errors import BadStore, StoreInUse
from penstock.format.msgspec_warm_up import prepared
from penstock.store.message_store import MessageStore
from penstock.store.settings import FlushDiskType

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LARGEST: Final = 1 << 16


class _Content(msgspec.Struct, frozen=True, rename="camel"):
    id: Annotated[int, msgspec.Meta(ge=0)] = 0
    boot_id: str = ""
    tainted_in: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """The last epoch of the log when it was found to be tainted; -1 if it is not."""
    lacking_in: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """The last epoch that this replica had known when messages were found to be missing; -1 if none are."""
    in_sync_in: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """The newest epoch in whose sync set this replica was seen; 0 if there is none; -1 if an older version, which did
    not note it, wrote the file."""
    running: str = ""
    """The flushDiskType of a process that has not stopped cleanly, or still runs; empty if there is none."""


class Membership:
    """The file of one open store."""

    def __init__(self, store: MessageStore) -> None:
        """Reads the file, and notes this start. Raises BadStore or StoreFailed."""
        self._path = store.layout.failover
        self._lock = store.layout.lock
        self._files = store.engine.io
        self._content = content = self._read()
        boot_id = _boot_id()
        is_new_boot = content.boot_id not in ("", boot_id)
        flush = content.running or ("" if store.report.clean_exit else str(store.settings.flush_disk_type))
        lost_memory = is_new_boot and flush == FlushDiskType.ASYNC_FLUSH
        if content.id and lost_memory:
            self._change(tainted_in=max(content.tainted_in, store.epochs.last))
        if content.id and lost_log(store, content.in_sync_in, lost_memory=lost_memory):
            self._change(lacking_in=max(content.lacking_in, content.in_sync_in, store.epochs.last))
        self._change(boot_id=boot_id, running=str(store.settings.flush_disk_type))

    @property
    def id(self) -> int:
        """The id that the set has given to this replica; 0 if it has been in none."""
        return self._content.id

    @property
    def is_tainted(self) -> bool:
        return self._content.tainted_in >= 0

    @property
    def is_lacking(self) -> bool:
        """Whether the log lacks messages that this replica had acknowledged."""
        return self._content.lacking_in >= 0

    def stopped(self) -> None:
        """Notes that the process has stopped cleanly. Call it when the store is closed.

        Changes nothing if another process has opened the store meanwhile. Raises StoreFailed.
        """
        with contextlib.suppress(StoreInUse):
            lock = self._files.lock(self._lock)
            try:
                self._change(running="")
            finally:
                lock.release()

    def joined(self, replica_id: int) -> None:
        """Notes the id, before the replica follows or leads for the first time."""
        self._change(id=replica_id, in_sync_in=0)

    def seen(self, state: State, *, has_confirmed: bool = False) -> None:
        """Notes that the replica follows or leads in this state. Raises StoreFailed; then nothing is noted.

        `has_confirmed`: this process follows the master of this epoch, and its log has all that this master has said is
        confirmed. What was acknowledged before the master said so, is confirmed. What was acknowledged later, while the
        master counted on this replica, was reported by this process. And if the master did not count on it for a time,
        it has compared this process's reports before it added the replica again. So a replica of the sync set has every
        acknowledged message then, whatever it lacked at its start.
        """
        content = self._content
        if content.id not in state.sync:
            return
        is_master = state.master == content.id
        is_forced = is_master and state.forced == state.epoch
        changes: dict[str, int] = {}
        if content.tainted_in < state.epoch:
            changes["tainted_in"] = -1
        if is_forced or has_confirmed or (content.lacking_in < state.epoch and not is_master):
            changes["lacking_in"] = -1
        if content.in_sync_in < state.epoch and not is_forced:
            changes["in_sync_in"] = state.epoch
        self._change(**changes)

    def _change(self, **changes: int | str) -> None:
        changed = msgspec.structs.replace(self._content, **changes)
        if changed != self._content:
            self._files.make_folder(self._path.parent)
            self._files.replace_bytes(self._path, msgspec.json.encode(changed))
            self._content = changed

    def _read(self) -> _Content:
        if not self._files.exists(self._path):
            return _Content()
        data = self._files.read_bytes(self._path)
        try:
            return msgspec.json.decode(data[:_LARGEST], type=prepared(_Content))
        except msgspec.MsgspecError as error:
            why = (
                f"this is not what a broker writes ({error}); restore it, or remove it to join the set as a new replica"
            )
            raise BadStore(why, path=self._path) from None


def lost_log(store: MessageStore, in_sync_in: int, *, lost_memory: bool) -> bool:
    """Whether an open store has less of its log than it must have.

    `in_sync_in` is the newest epoch in whose sync set it was; -1 if that is not known: then it may have been in any.
    `lost_memory`: the machine's memory may have had acknowledged messages that were not on disk. Then a shorter log is
    no surprise, unless it is empty.
    """
    end = store.watermarks.appended
    starts = [each.start for each in store.epochs.entries if in_sync_in < 0 or each.epoch <= in_sync_in]
    must_have = max([store.confirmed_at_start, *starts[-1:]])
    return end < must_have and (not lost_memory or end <= max(store.log.min_offset, 0))


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
