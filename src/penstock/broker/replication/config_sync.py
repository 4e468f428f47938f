"""A slave's ordinary requests to its master: where that is, who asks, and one connection that is kept.

The addresses are those of the settings, or else what name servers answer to a registration. Belongs to the loop's
thread.


Whether a slave's log is a beginning of its master's, asked before anything is added to it.

The replication protocol has no such question, so the master is asked as a client would: how far its log goes (28), and
what message lies where the slave's newest one does (33). A log that ended differently, as after a master lost what it
had not synced, has another message there or none. Works with RocketMQ's masters as well.


A slave's copy of what its master keeps beside the log: topics, groups, offsets of consumers and of delays.

Asked for by ordinary requests, as RocketMQ's slaves do: soon after the start, every ten seconds then, and when a
message comes whose topic is not known. Each table is replaced as a whole and saved by the slave's own persister. A
master of ours also tells which topics it has deleted, and up to where in the log: their queues go here as well. A slave
whose master is gone goes on with the last copy; offsets that consumers commit to it meanwhile are overwritten when the
master is back, so they may see messages again. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.broker.settings import BrokerSettings
from penstock.broker.state import BrokerState
from penstock.errors import BadSettings, PenstockError, Unreachable
from penstock.format.config_tables import ConsumerOffsets, DelayOffsets, SubscriptionGroups, TopicConfigs
from penstock.format.record import decode_record
from penstock.protocol.bodies.tables import DELETED_TOPICS, KVTable, decode_config, decode_deleted
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.signing import sign
from penstock.remoting.connection import Address, Connection, connect
from penstock.remoting.limits import ConnectionLimits
from penstock.remoting.sockets import parse_address
from penstock.remoting.tls import client_tls
from penstock.store.replication.replica_log import last_record
from penstock.store.settings import Settings
from penstock.store.store import MessageStore

ASKED_BY_SLAVES: Final = frozenset(
    {
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
    }
)
"""Administration, but slaves ask it, which read the whole log anyway."""
_WAIT_S: Final = 10.0
_LARGEST_BODY: Final = 64 << 20


class MasterRefused(PenstockError):
    """The master answered, and not what was asked for."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"the master answered {code}: {remark or 'no reason given'}")
        self.code = code


class MasterLink:
    """Knows the master's two addresses, and asks it."""

    def __init__(self, settings: Settings, broker: BrokerSettings) -> None:
        """Raises BadSettings."""
        self._fixed_log = settings.ha_master_address
        self._fixed_clients = broker.master_addr
        if settings.ha_master_address and not (broker.master_addr or broker.name_servers):
            raise BadSettings(
                "haMasterAddress needs masterAddr or namesrvAddr: a slave also asks its master as clients do"
            )
        if settings.ha_master_address:
            parse_address(settings.ha_master_address, "haMasterAddress")
        if broker.master_addr:
            parse_address(broker.master_addr, "masterAddr")
        self._account = None if broker.ha_account_file is None else _read_account(broker.ha_account_file)
        self.tls = client_tls(settings.broker)
        self._told_log = self._told_clients = ""
        self._connection: Connection | None = None
        self.known = asyncio.Event()
        """Set once both addresses are known."""
        self._look()

    # -- where it is -----------------------------------------------------------------------------------------

    def told(self, log_address: str, client_address: str) -> None:
        """What a name server knows of the master; it counts where the settings say nothing."""
        if client_address:
            self._told_clients = client_address
        if log_address:
            self._told_log = log_address
        self._look()

    def _look(self) -> None:
        if self.log_address and self.client_address:
            self.known.set()

    @property
    def log_address(self) -> str:
        """Where the log is to be had; empty if nobody has told."""
        return self._fixed_log or self._told_log

    @property
    def client_address(self) -> str:
        """Where the master answers clients; empty if nobody has told."""
        return self._fixed_clients or self._told_clients

    # -- asking ----------------------------------------------------------------------------------------------

    async def ask(self, code: RequestCode, arguments: Mapping[str, str] | None = None) -> Command:
        """The master's answer. Raises Unreachable, NoAnswer, or MasterRefused if it is no success."""
        command = Command(code, dict(arguments or {}))
        if self._account is not None:
            sign(command, *self._account)
        connection = await self._connect()
        reply = await connection.request(command, _WAIT_S)
        if reply.code != ResponseCode.SUCCESS:
            raise MasterRefused(reply.code, reply.remark or "")
        return reply

    async def _connect(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            where = f"{self._connection.peer[0]}:{self._connection.peer[1]}"
            if where == self.client_address:
                return self._connection
            self._connection.close()
        if not self.client_address:
            raise Unreachable("no name server has told where the master is; set masterAddr, or start the master")
        address: Address = parse_address(self.client_address, "masterAddr")
        self._connection = await connect(address, tls=self.tls, limits=ConnectionLimits(frame_bytes=_LARGEST_BODY))
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _read_account(path: Path) -> tuple[str, str]:
    """`accessKey: x` and `secretKey: y`, as in mqadmin's tools.yml."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadSettings(
            f"haAccountFile cannot be read: {why}; check its path and who may read it", path=path
        ) from None
    pairs = (re.split(r"\s*[:=]\s*", line.strip(), maxsplit=1) for line in lines)
    found = {pair[0]: pair[1].strip("'\"") for pair in pairs if len(pair) == 2}
    if not found.get("accessKey") or not found.get("secretKey"):
        raise BadSettings("haAccountFile needs the lines accessKey: … and secretKey: …", path=path)
    return found["accessKey"], found["secretKey"]


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


log = logging.getLogger("penstock.broker")
_EVERY_S: Final = 10.0
_RETRY_S: Final = 1.0
_LEAST_S: Final = 0.1
"""Between two copies, however many topics are new."""


class ConfigCopy:
    """Copies as long as it runs."""

    def __init__(self, state: BrokerState, link: MasterLink) -> None:
        self._state = state
        self._link = link
        self._task: asyncio.Task[None] | None = None
        self._failed = ""
        self._deleted: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._soon = asyncio.Event()
        self.copies = 0
        """How often all tables were taken over."""

    def start(self) -> None:
        self._state.store.on_arrival(self._arrived)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _arrived(self, topic: str, *_: object) -> None:
        """On whatever thread dispatches."""
        if self._state.topics.find(topic) is None:
            with contextlib.suppress(RuntimeError):  # the loop is gone
                self._loop.call_soon_threadsafe(self._soon.set)

    async def _run(self) -> None:
        await self._link.known.wait()
        while True:
            self._soon.clear()
            try:
                await self.copy()
                self._failed = ""
            except PenstockError as error:
                if str(error) != self._failed:
                    log.warning("the master's tables are not copied now: %s", error)
                self._failed = str(error)
            except Exception:
                log.exception("the master's tables are not copied now")
                self._failed = "an error"
            await asyncio.sleep(_LEAST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S if self._failed else _EVERY_S):
                    await self._soon.wait()

    async def copy(self) -> None:
        """Takes all four tables over. Raises PenstockError, and has taken over those that came before."""
        state, ask = self._state, self._link.ask
        told = await ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        state.topics.take_over(decode_config(TopicConfigs, told.body))
        deleted = decode_deleted(told.ext.get(DELETED_TOPICS, ""))
        if deleted != self._deleted:
            for topic in await asyncio.to_thread(state.store.delete_as_master, deleted):
                log.info("topic %s is deleted, as the master has deleted it", topic)
            self._deleted = deleted
        groups = decode_config(SubscriptionGroups, (await ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
        state.groups.take_over(groups)
        offsets = decode_config(ConsumerOffsets, (await ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
        state.offsets.take_over(offsets)
        delays = decode_config(DelayOffsets, (await ask(RequestCode.GET_ALL_DELAY_OFFSET)).body)
        state.delayed.take_over(delays)
        self.copies += 1
