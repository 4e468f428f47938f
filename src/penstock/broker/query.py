"""Queries: messages by key (request code 12) and by message id (33).

A key may have many candidates in the index, so the search runs in a thread, and the loop serves other requests
meanwhile. There is only one such thread, so a client with many queries delays only other queries. A reply that would be
too large keeps the newest messages only.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.protocol import fields
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.pull import QueryMessage, QueryMessageReply, ViewMessage
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler
from penstock.store.message_store import MessageStore

_MAX_BYTES: Final = 8 << 20
"""Limit of one reply in bytes. Clients refuse frames of more than 16 MiB. One record is returned even if it is
larger."""


class MessageQueries:
    """Searches the index and the log."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "penstock-query")
        self._stopped = False

    def handlers(self) -> dict[RequestCode, Handler]:
        return {RequestCode.QUERY_MESSAGE: self._by_key, RequestCode.VIEW_MESSAGE_BY_ID: self._by_id}

    def stop(self) -> None:
        """Refuses further queries, and returns when the running query has ended. Any thread may call this."""
        self._stopped = True
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _by_key(self, connection: Connection, command: Command) -> Command:
        header = command.read(QueryMessage)
        if self._stopped:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is stopping; query another one")
        records = await asyncio.get_running_loop().run_in_executor(self._thread, self._find, header)
        ext = fields.write(self._index_end())
        if not records:
            why = "no such message in this time range, or not indexed yet"
            return command.reply(ResponseCode.QUERY_NOT_FOUND, why, ext)
        return command.reply(ResponseCode.SUCCESS, ext=ext, body=b"".join(records))

    def _find(self, header: QueryMessage) -> list[bytes]:
        limit = None if header.unique_key else max(header.max_num, 1)
        hits = self._store.query(header.topic, header.key, header.begin_timestamp, header.end_timestamp, limit)
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

    def _by_id(self, connection: Connection, command: Command) -> Command:
        offset = command.read(ViewMessage).offset
        record = self._store.look_up(offset)
        data = None if record is None else self._store.records.raw(offset, record.size)[0]
        if data is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no message at offset {offset}")
        return command.reply(ResponseCode.SUCCESS, body=data)
