"""Whether a slave's log is a beginning of its master's, asked before anything is added to it.

The replication protocol has no such question, so the master is asked as a client would: how far its log goes (28), and
what message lies where the slave's newest one does (33). A log that ended differently, as after a master lost what it
had not synced, has another message there or none. Works with RocketMQ's masters as well.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from penstock.broker.replication.master_link import MasterLink, MasterRefused
from penstock.errors import PenstockError
from penstock.format.record import decode_record
from penstock.protocol.bodies.lists import KVTable
from penstock.protocol.codes import RequestCode
from penstock.store.master_bytes import last_record
from penstock.store.store import MessageStore

_NEW_START = "keep this store aside, and start the slave with an empty folder or with a copy of the master's store"


class NotTheSameLog(PenstockError):
    """This log does not go on where the master's does; nothing was added to it."""


class Master(NamedTuple):
    """What a master has told of itself."""

    is_penstock: bool
    begins_at: int | None
    """Where its log begins, if it told."""


async def check_same_log(store: MessageStore, link: MasterLink) -> Master:
    """Returns if the master's log can be put behind this one. Raises NotTheSameLog, or what asking raises."""
    told = KVTable.from_bytes((await link.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    if store.log.queue.wrote_offset:
        await _compare(store, link, told)
    lowest = _number(told, "commitLogMinOffset")
    return Master("penstockVersion" in told, None if lowest is None else max(lowest, 0))


async def _compare(store: MessageStore, link: MasterLink, told: dict[str, str]) -> None:
    end = store.log.queue.wrote_offset
    lowest, highest = _number(told, "commitLogMinOffset"), _number(told, "commitLogMaxOffset")
    if highest is not None and end > highest:
        raise NotTheSameLog(
            f"this slave has {end} bytes of log and its master only {highest}: the master has lost messages that are "
            f"here, or it is another one; nothing is copied; decide which of the two goes on; {_NEW_START}"
        )
    if lowest is not None and end < lowest:
        raise NotTheSameLog(
            f"this slave's log ends at {end}, and the master has deleted its own up to {lowest}: what lies between "
            f"cannot be had any more; {_NEW_START}"
        )
    newest = await asyncio.to_thread(last_record, store.log, store.queues)
    if newest is None or (lowest is not None and newest[0] < lowest):
        return
    offset, own = newest
    try:
        theirs = bytes((await link.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})).body)
    except MasterRefused as error:
        raise NotTheSameLog(
            f"this slave's newest message, {_describe(own)}, lies at {offset}, where the master has none ({error}); "
            f"nothing is copied; {_NEW_START}"
        ) from None
    if theirs != own:
        raise NotTheSameLog(
            f"the logs differ at {offset}: this slave has {_describe(own)}, and its master {_describe(theirs)}; "
            f"nothing is copied; {_NEW_START}"
        )


def _number(table: dict[str, str], name: str) -> int | None:
    text = table.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None


def _describe(data: bytes) -> str:
    try:
        record = decode_record(data)
    except PenstockError:
        return f"{len(data)} bytes that are no message"
    return f"message {record.queue_offset} of {record.topic} queue {record.queue_id} stored at {record.store_timestamp}"
