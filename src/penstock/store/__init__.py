"""The embeddable message store: its public API.

    from penstock.store import Message, MessageStore, Settings

    with MessageStore.open("data/store", Settings.dev()) as store:
        ack = store.put(Message("orders", b"...", keys=("order_1",), tags="paid"))
        page = store.get("orders", queue_id=0, offset=0, max_messages=32, tags="paid || refunded")
        hits = store.query("orders", "order_1")

One process owns a store. Any of its threads may put and get.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.format.record import Record
    from penstock.store.damage_and_quarantine import DamagedRange
    from penstock.store.message import (
        ArrowPage,
        ArrowResult,
        BatchResult,
        GetStatus,
        LogPage,
        Message,
        Page,
        PutResult,
        PutStatus,
        TagFilter,
    )
    from penstock.store.message_store import MessageStore
    from penstock.store.put_and_get_statistics import Snapshot
    from penstock.store.query import Boundary, Hits
    from penstock.store.recovery import Progress, RecoveryReport
    from penstock.store.settings import BrokerRole, Dispatch, FlushDiskType, Settings

__all__ = [
    "ArrowPage",
    "ArrowResult",
    "BatchResult",
    "Boundary",
    "BrokerRole",
    "DamagedRange",
    "Dispatch",
    "FlushDiskType",
    "GetStatus",
    "Hits",
    "LogPage",
    "Message",
    "MessageStore",
    "Page",
    "Progress",
    "PutResult",
    "PutStatus",
    "Record",
    "RecoveryReport",
    "Settings",
    "Snapshot",
    "TagFilter",
]

_MODULES: Final = {
    "penstock.format.record": ("Record",),
    "penstock.store.damage_and_quarantine": ("DamagedRange",),
    "penstock.store.message": (
        "ArrowPage",
        "ArrowResult",
        "BatchResult",
        "GetStatus",
        "LogPage",
        "Message",
        "Page",
        "PutResult",
        "PutStatus",
        "TagFilter",
    ),
    "penstock.store.message_store": ("MessageStore",),
    "penstock.store.query": (
        "Boundary",
        "Hits",
    ),
    "penstock.store.recovery": (
        "Progress",
        "RecoveryReport",
    ),
    "penstock.store.settings": (
        "BrokerRole",
        "Dispatch",
        "FlushDiskType",
        "Settings",
    ),
    "penstock.store.put_and_get_statistics": ("Snapshot",),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Imports the module of a name on first use: readers of files in Spark's workers need only a part of the store."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
