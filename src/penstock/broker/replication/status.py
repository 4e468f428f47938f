"""Who follows whom, and how far behind: for metrics, and for administrators (907).

How many seconds a slave is behind is told by samples: each second a master notes how far its log is, and a slave is as
old as the last note that it has passed. An hour of notes is kept; a slave that is further behind is at least that old.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from penstock.broker.replication.follower import Follower
from penstock.broker.replication.listener import SlaveListener
from penstock.broker.replication.master_link import MasterLink
from penstock.protocol.bodies.ha import HaClient, HaConnection, HaRuntimeInfo
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler
from penstock.store.settings import BrokerRole
from penstock.store.store import MessageStore

SAMPLE_S: Final = 1.0
_NOTES: Final = 3600


class ReplicationStatus:
    """Answers from the listener of a master, or the follower of a slave; either may be missing."""

    def __init__(
        self,
        store: MessageStore,
        listener: SlaveListener | None = None,
        follower: Follower | None = None,
        link: MasterLink | None = None,
    ) -> None:
        self._store = store
        self._listener = listener
        self._follower = follower
        self._link = link
        self._notes: deque[tuple[int, float]] = deque(maxlen=_NOTES)
        self.sample()

    def handlers(self) -> dict[RequestCode, Handler]:
        return {RequestCode.GET_BROKER_HA_STATUS: self._answer}

    def sample(self) -> None:
        """To be called every SAMPLE_S seconds."""
        end = self._store.log.confirmed_offset
        if self._notes and self._notes[-1][0] == end:
            self._notes.pop()  # the log stands still: only when it was last that long counts
        self._notes.append((end, time.monotonic()))

    def now(self) -> HaRuntimeInfo:
        """How replication stands."""
        role, end = self._store.settings.broker_role, self._store.log.confirmed_offset
        slaves = [] if self._listener is None else [each for each in self._listener.slaves if each.follows]
        known = [
            HaConnection(
                addr=f"{slave.peer[0]}:{slave.peer[1]}",
                slave_ack_offset=slave.acknowledged,
                diff=max(end - slave.acknowledged, 0),
                in_sync=end - slave.acknowledged < self._store.settings.ha_slave_fallbehind_max,
                transfer_from_where=slave.sent,
                behind_seconds=self._behind_seconds(slave.acknowledged, end),
                last_ack_timestamp=slave.acknowledged_ms,
            )
            for slave in sorted(slaves, key=lambda each: each.peer)
        ]
        return HaRuntimeInfo(
            master=role is not BrokerRole.SLAVE,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=sum(slave.in_sync for slave in known),
            ha_connection_info=known,
            ha_client_runtime_info=self._client(),
            broker_role=str(role),
        )

    def _client(self) -> HaClient | None:
        follower, link = self._follower, self._link
        if follower is None or link is None:
            return None
        return HaClient(
            master_addr=link.log_address,
            max_offset=self._store.log.confirmed_offset,
            last_read_timestamp=follower.received_ms,
            master_flush_offset=follower.master_end,
            activated=follower.follows,
            problem="" if follower.follows else follower.problem,
        )

    def _behind_seconds(self, offset: int, end: int) -> float:
        if offset >= end:
            return 0.0
        now = time.monotonic()
        since = next((at for note, at in self._notes if note > offset), now)
        return round(now - since, 3)

    def _answer(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=self.now().to_bytes())
