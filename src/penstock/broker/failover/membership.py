"""`penstock/failover.json` in a store: its id in the set, and whether it may have lost acknowledged messages.

A replica is tainted if it flushes asynchronously, its last process ended uncleanly, and the machine has booted since:
what it had acknowledged may have been in the page cache only. It stays tainted until it is in a sync set of a later
epoch: then it has every acknowledged message again. The file is written by this module only, before the replica
publishes anything. A crash leaves the old one or the new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from penstock.broker.failover.consensus_engine import State
from penstock.errors import BadStore
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


class Membership:
    """The file of one open store."""

    def __init__(self, store: MessageStore) -> None:
        """Reads the file, and notes this start. Raises BadStore or StoreFailed."""
        self._path = store.layout.failover
        self._files = store.engine.io
        self._content = self._read()
        boot_id = _boot_id()
        is_new_boot = self._content.boot_id not in ("", boot_id)
        lost = is_new_boot and not store.report.clean_exit
        if lost and store.settings.flush_disk_type is FlushDiskType.ASYNC_FLUSH and self._content.id:
            self._change(tainted_in=max(self._content.tainted_in, store.epochs.last))
        self._change(boot_id=boot_id)

    @property
    def id(self) -> int:
        """The id that the set has given to this replica; 0 if it has been in none."""
        return self._content.id

    @property
    def is_tainted(self) -> bool:
        return self._content.tainted_in >= 0

    def joined(self, replica_id: int) -> None:
        """Notes the id, before the replica follows or leads for the first time."""
        self._change(id=replica_id)

    def seen(self, state: State) -> None:
        """Notes that the replica follows or leads in this state."""
        if self.is_tainted and self._content.id in state.sync and state.epoch > self._content.tainted_in:
            self._change(tainted_in=-1)

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


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
