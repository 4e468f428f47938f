"""Ordinary requests, served straight from the bytes of a connection: the broker's side of `format.kernels.RequestPath`.

An `OrdinaryRequests` is the `serve_frames` of a broker's server. It gives the kernel the tables of the general path, so
that a topic that passed all checks there is known here, and is forgotten at the same moment. It takes only what the
general path would serve without a look at anything else. Where access is controlled or spans are recorded, a broker has
none, because each request concerns the guards then.

The environment variable PENSTOCK_REQUESTS chooses: compiled (the default), or general, which serves every request on
the general path. Use everything here from the loop's thread only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.long_polling import HeldPulls
from penstock.broker.operations import Client, host_text
from penstock.broker.remoting.reply_frames import BARE_PIECES, PULL_PIECES, QUERY_PIECES, SendReplyFrames
from penstock.broker.remoting.send_and_pull import fields_of_every_send
from penstock.broker.saved_tables import BrokerState
from penstock.broker.send import Sends
from penstock.broker.send_and_pull_results import PutOutcomes
from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings, PenstockError
from penstock.format import kernels
from penstock.format.hosts import encode_host
from penstock.protocol.frame import MAX_HEADER
from penstock.remoting.connection import Connection
from penstock.remoting.limits import FLUSH_AT
from penstock.store.message import Page

VARIABLE: Final = "PENSTOCK_REQUESTS"


def is_chosen() -> bool:
    """Whether ordinary requests have a path of their own. Raises BadSettings."""
    chosen = os.environ.get(VARIABLE, "compiled")
    if chosen not in ("compiled", "general"):
        raise BadSettings(f"{VARIABLE}: '{chosen}' is not one of compiled, general")
    return chosen == "compiled"


class OrdinaryCalls(NamedTuple):
    """What the kernel leaves to the concerns of the broker; see `format.kernels.RequestPath`."""

    on_stored: Callable[[str, int], object]
    count_sent: Callable[[str, int, int], object]
    pull: Callable[[Client, str, str, int, int, int, int, int, int], Page | None]
    commit: Callable[[Client, str, str, int, int], bool]
    query: Callable[[str, str, int], int]


class OrdinaryRequests:
    """Serves the ordinary requests of one broker."""

    def __init__(
        self,
        state: BrokerState,
        sends: Sends,
        held: HeldPulls,
        calls: OrdinaryCalls,
        accepts_messages: Callable[[], bool],
        frame_bytes: int,
    ) -> None:
        """`accepts_messages` returns whether this broker stores messages at all, now."""
        self._sends = sends
        self._accepts_messages = accepts_messages
        self._message_host = PutOutcomes(state.store).host.encode()
        self._hosts: dict[Connection, bytes] = {}
        """The host of each client in its 8 or 20 bytes; empty if it has none."""
        self._path = kernels.RequestPath(
            state.store.log.appender,
            sends.plain_topics,
            held.queues,
            calls,
            frame_bytes,
            MAX_HEADER,
            FLUSH_AT,
        )
        self._path.answer_pulls(PULL_PIECES)
        self._path.answer_offsets(QUERY_PIECES, BARE_PIECES)
        state.settings.on_change.append(self._on_settings)
        self._on_settings(state.settings.now)

    def __call__(self, connection: Connection, data: bytes, at: int) -> tuple[int, int, list[bytes]]:
        """Serves frames of a connection: see `remoting.handlers.ServeFrames`."""
        host = self._hosts.get(connection)
        if host is None:
            host = self._add(connection)
        return self._path.serve(connection, data, at, host, self._accepts_messages() and self._sends.takes_ordinary)

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
