"""What RocketMQ 5 may keep in a store's folder and Penstock cannot carry on: queues in RocksDB, timed messages.

A store that has them can be looked into, but not owned: its queues would fall behind, or its timed messages would never
be delivered, and nobody would be told.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import BadStore
from penstock.store.files import Files
from penstock.store.layout import Layout

_ROCKSDB: Final = "consumequeue_rocksdb"
_TIMER_LOG: Final = "timerlog"


def refuse_other_engines(files: Files, layout: Layout) -> None:
    """Raises BadStore, before anything is changed. A timer wheel without a message on it is no hindrance."""
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
