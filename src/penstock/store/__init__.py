"""The embeddable message store: its public API.

    from penstock.store import Message, MessageStore, Settings

    with MessageStore.open("data/store", Settings.dev()) as store:
        ack = store.put(Message("orders", b"...", keys=("order_1",), tags="paid"))
        page = store.get("orders", queue_id=0, offset=0, max_messages=32, tags="paid || refunded")
        hits = store.query("orders", "order_1")

One process owns a store. Any of its threads may put and get.
"""

from penstock.format.record import Record
from penstock.store.damaged_ranges import DamagedRange
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
from penstock.store.query import Boundary, Hits
from penstock.store.recovery import Progress, RecoveryReport
from penstock.store.settings import BrokerRole, Dispatch, FlushDiskType, Settings
from penstock.store.statistics import Snapshot

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
