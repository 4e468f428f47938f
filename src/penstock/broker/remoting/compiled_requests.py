"""Ordinary requests, served straight from the bytes of a connection: the broker's side of `format.kernels.RequestPath`.

An `OrdinaryRequests` is the `serve_frames` of a broker's server. It gives the kernel the tables of the general path, so
that a topic that passed all checks there is known here, and is forgotten at the same moment. It takes only what the
general path would serve without a look at anything else. Where access is controlled or spans are recorded, a broker has
none, because each request concerns the guards then.

Under SYNC_FLUSH and SYNC_MASTER the replies to the sends of one read wait together in `broker.send_acks`, until the
last of their messages is safe. A request that fails with an exception is answered with SYSTEM_ERROR, as on the general
path.

The environment variable PENSTOCK_REQUESTS chooses: compiled (the default), or general, which serves every request on
the general path. Use everything here from the loop's thread only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.broker.long_polling import HeldPulls
from penstock.broker.offsets import Offsets
from penstock.broker.operations_as_plain_calls import Client, host_text
from penstock.broker.pull import Pulls
from penstock.broker.remoting.reply_frames import BARE_PIECES, PULL_PIECES, QUERY_PIECES, SendReplyFrames
from penstock.broker.remoting.send_and_pull import fields_of_every_send
from penstock.broker.send import Sends
from penstock.broker.send_acks import PendingAcks
from penstock.broker.send_and_pull_results import PutOutcomes
from penstock.broker.settings import BrokerSettings
from penstock.broker.table_persistence import BrokerState
from penstock.errors import BadSettings, PenstockError
from penstock.format import kernels
from penstock.format.hosts import encode_host
from penstock.protocol.codes import ResponseCode
from penstock.protocol.frame import MAX_REQUEST_HEADER, FrameReader, encode
from penstock.remoting.connection import Connection
from penstock.remoting.handler_types_and_errors import failed
from penstock.remoting.limits import FLUSH_AT
from penstock.store.message import Page

log = logging.getLogger("penstock.broker")

VARIABLE: Final = "PENSTOCK_REQUESTS"


def is_chosen() -> bool:
    """Whether ordinary requests have a path of their own. Raises BadSettings."""
    chosen = os.environ.get(VARIABLE, "compiled")
    if chosen not in ("compiled", "general"):
        raise BadSettings(f"{VARIABLE}: '{chosen}' is not one of compiled, general")
    return chosen == "compiled"


class OrdinaryCalls(NamedTuple):
    """What the kernel leaves to the concerns of the broker; see `format.kernels.RequestPath`."""

    when_safe: Callable[[Connection, int, int, float, int, bytes], object]
    on_stored: Callable[[str, int], object]
    count_sent: Callable[[str, int, int], object]
    pull: Callable[[Client, bytes | None, str, str, int, int, int, int, int, int], Page | None]
    commit_pulled: Callable[[Client, str, str, int, int], object]
    count_got: Callable[[int, int, int, float], object]
    consume_hooks: list[Any]
    commit: Callable[[Client, str, str, int, int], bool]
    query: Callable[[str, str, int], int]


class OrdinaryRequests:
    """Serves the ordinary requests of one broker."""

    def __init__(
        self,
        state: BrokerState,
        sends: Sends,
        acks: PendingAcks,
        pulls: Pulls,
        held: HeldPulls,
        offsets: Offsets,
        accepts_messages: Callable[[], bool],
        frame_bytes: int,
    ) -> None:
        """`accepts_messages` returns whether this broker stores messages at all, now."""
        self._store = store = state.store
        self._sends = sends
        self._acks = acks
        self._counters = state.counters
        self._accepts_messages = accepts_messages
        self._frame_bytes = frame_bytes
        calls = OrdinaryCalls(
            when_safe=self._when_safe,
            on_stored=held.on_stored,
            count_sent=state.counters.count_sent,
            pull=pulls.find_ordinary,
            commit_pulled=pulls.commit_pulled,
            count_got=store.statistics.count_pages,
            consume_hooks=state.hooks.consume,
            commit=offsets.commit_ordinary,
            query=state.offsets.query,
        )
        self._message_host = PutOutcomes(state.store).host.encode()
        self._hosts: dict[Connection, bytes] = {}
        """The host of each client in its 8 or 20 bytes; empty if it has none."""
        self._path = kernels.RequestPath(
            state.store.log.appender,
            sends.plain_topics,
            held.queues,
            pulls.ordinary_queues,
            calls,
            frame_bytes,
            MAX_REQUEST_HEADER,
            FLUSH_AT,
        )
        self._path.answer_pulls(PULL_PIECES)
        self._path.answer_offsets(QUERY_PIECES, BARE_PIECES)
        state.settings.on_change.append(self._on_settings)
        self._on_settings(state.settings.now)

    def __call__(self, connection: Connection, data: bytes, at: int) -> tuple[int, int, list[bytes]]:
        """Serves frames of a connection: see `remoting.handler_types_and_errors.ServeFrames`."""
        host = self._hosts.get(connection)
        if host is None:
            host = self._add(connection)
        takes_sends = self._accepts_messages() and self._sends.takes_ordinary
        room = self._sends.room(connection) if takes_sends else 0
        at, stop, replies, failure, late = self._path.serve(connection, data, at, host, takes_sends, room)
        if late is not None:
            log.error("after ordinary requests of %s:%d", *connection.peer, exc_info=late)
        if failure is not None:
            replies += self._fail(data[at:stop], failure)
            at = stop
        return at, stop, replies

    def _fail(self, frame: bytes, error: Exception) -> list[bytes]:
        """Returns the reply to a request that failed; none if it wants none."""
        (command,) = FrameReader(self._frame_bytes).feed(frame)
        reply = failed(command, error)
        self._counters.count_refused(command.code)
        return [] if command.is_oneway else [encode(reply)]

    def _when_safe(
        self, connection: Connection, end_offset: int, messages: int, seconds: float, count: int, replies: bytes
    ) -> None:
        """Has the replies to `count` sends wait until the log is safe up to `end_offset`."""
        try:
            self._store.statistics.count_appended(messages, seconds)
            if count:
                send = partial(_send, connection, replies)
                self._acks.send_when_safe(connection, end_offset, count, len(replies), send)
            else:
                self._store.watermarks.sync_soon(end_offset)
        except Exception as error:  # the messages are stored; their senders must not wait in vain
            log.exception("cannot wait for the acks of %d sends of %s:%d", count, *connection.peer)
            _send(connection, replies, ResponseCode.SYSTEM_ERROR, str(error))

    def _add(self, connection: Connection) -> bytes:
        try:
            host = encode_host(host_text(*connection.peer))
        except PenstockError:
            host = b""
        self._hosts[connection] = host
        connection.on_close.append(self._remove)
        return host

    def _remove(self, connection: Connection) -> None:
        self._hosts.pop(connection, None)

    def _on_settings(self, settings: BrokerSettings) -> None:
        frames = SendReplyFrames(fields_of_every_send(settings))
        self._path.answer_sends(
            self._sends.suffix.encode(), self._message_host, frames.pieces, frames.binary_head, frames.binary_tail
        )


def _send(connection: Connection, replies: bytes, code: ResponseCode, remark: str) -> None:
    """Sends the encoded replies to sends; with `code` and `remark`, unless that is SUCCESS."""
    if code is ResponseCode.SUCCESS:
        connection.send_frames([replies])
        return
    for reply in FrameReader().feed(replies):
        reply.code, reply.remark = code, remark
        connection.send(reply)
