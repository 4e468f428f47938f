"""Queries: messages by key and by message id.

A key may have many candidates in the index, so the search runs in a thread, and the loop serves other requests
meanwhile. There is only one such thread, so a client with many queries delays only other queries. A reply that would be
too large keeps the newest messages only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from penstock.broker.operations_as_plain_calls import Client, Operation
from penstock.broker.reads_without_blocking_the_loop import after_read
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.pull import QueryMessage, QueryMessageReply, ViewMessage
from penstock.store.cold_reads import try_read
from penstock.store.message_store import MessageStore

_MAX_BYTES: Final = 8 << 20
"""Limit of one reply in bytes. Clients refuse frames of more than 16 MiB. One record is returned even if it is
larger."""


class FoundMessages(NamedTuple):
    """The records with a key, oldest first, and how far the index reaches."""

    records: list[bytes]
    index_end: QueryMessageReply

    @property
    def code(self) -> ResponseCode:
        return ResponseCode.SUCCESS if self.records else ResponseCode.QUERY_NOT_FOUND


class MessageQueries:
    """Searches the index and the log."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "penstock-query")
        self._stopped = False

    def operations(self) -> tuple[Operation, ...]:
        return Operation("query", self.by_key), Operation("view", self.by_id)

    def stop(self) -> None:
        """Refuses further queries, and returns when the running query has ended. Any thread may call this."""
        self._stopped = True
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def by_key(self, client: Client, request: QueryMessage) -> FoundMessages:
        """Returns the messages with a key. Raises Refusal while the broker stops."""
        if self._stopped:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is stopping; query another one")
        records = await asyncio.get_running_loop().run_in_executor(self._thread, self._find, request)
        return FoundMessages(records, self._index_end())

    def _find(self, request: QueryMessage) -> list[bytes]:
        limit = None if request.unique_key else max(request.max_num, 1)
        hits = self._store.query(request.topic, request.key, request.begin_timestamp, request.end_timestamp, limit)
        kept: list[bytes] = []
        size = 0
        for record in reversed(hits.records):
            size += len(record)
            if kept and size > _MAX_BYTES:
                break
            kept.append(record)
        return kept[::-1]

    def _index_end(self) -> QueryMessageReply:
        index = self._store.index
        timestamp, offset = (0, 0) if index is None else index.newest
        return QueryMessageReply(index_last_update_timestamp=timestamp, index_last_update_phyoffset=offset)

    def by_id(self, client: Client, request: ViewMessage) -> bytes | Awaitable[bytes]:
        """Returns the record at a physical offset. Raises Refusal if there is none."""

        def found(data: bytes | None) -> bytes:
            if data is None:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"no message at offset {request.offset}")
            return data

        return after_read(self._store, try_read(self._store.look_up_encoded, request.offset), client, found)
