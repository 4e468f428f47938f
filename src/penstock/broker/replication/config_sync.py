"""A slave's ordinary requests to its master: are the logs the same, and copies of the tables.

`MasterLink` knows the master's addresses, from the settings or else from name servers, and keeps one connection. Where
haMasterProof asks for it, nothing is asked on a connection before the master has proved itself (`tickets`).

`ask_master` asks where the master's log begins and ends (request code 28), and whether it knows the handshake with
epochs. `check_same_log` runs before anything is appended. RocketMQ's HA protocol cannot compare logs, so the slave asks
which message the master has at the offset of the slave's newest message (33). If the logs have diverged, the master has
another message there, or none. That happens, for example, after a master lost messages that it had not synced. The
check works with RocketMQ's masters, too. With epochs, `compare_before` asks the same about the last message before the
offset up to which the logs are the same by their epochs.

`ConfigCopy` copies the topics, the groups, and the offsets of consumers and delay levels. It does so soon after the
start, then every ten seconds, with failover every second, and when a message of an unknown topic arrives. It replaces
each table as a whole, and the slave's own persister saves it. Penstock's masters also send the topics that they
deleted, each with the log offset up to which its messages are deleted; the slave deletes those queues as well.

The master's own progress is different: the delay levels, and the offsets of its own groups, which are the progress of
transaction checks. It says "delivered" of a message whose delivery is perhaps in no other log yet. A slave that took
that over at once, and became the master, would never deliver the message. So a slave keeps these positions aside until
its own log has everything that they rest on. A Penstock master sends with them where its log ended (`ProgressReply`). A
RocketMQ master does not; it is asked for its log's end after the tables, which is behind all that they rest on.
Positions count only within the connection by which the log came meanwhile: after another one, the same offsets may be
other records. Positions that are taken over late let a message be delivered again, but never leave one out.

While its master is away, a slave keeps the last copy. Offsets that consumers commit to the slave meanwhile are
overwritten when the master is back, so those consumers may get messages again. Use everything here from the loop's
thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.broker.replication.handshake import RUNTIME_KEY
from penstock.broker.replication.replication_authentication import NoMasterProof, check_proof
from penstock.broker.settings import BrokerSettings
from penstock.broker.table_persistence import BrokerState
from penstock.errors import BadSettings, PenstockError, Unreachable
from penstock.format.config_tables import ConsumerOffsets, DelayOffsets, SubscriptionGroups, TopicConfigs
from penstock.format.record import decode_record
from penstock.protocol import fields
from penstock.protocol.bodies.admin import KVTable, decode_config, decode_deleted
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.admin import AllTopicsReply, Follow, FollowReply, ProgressReply
from penstock.protocol.signing import RequestSigner
from penstock.remoting.connection import Address, Connection, connect
from penstock.remoting.limits import ConnectionLimits
from penstock.remoting.sockets import parse_address
from penstock.remoting.tls import client_tls
from penstock.store.message_store import MessageStore
from penstock.store.replication.replica_log import last_record
from penstock.store.settings import Settings

log = logging.getLogger("penstock.broker")

_WAIT_S: Final = 10.0
_MAX_BODY: Final = 64 << 20


class MasterRefused(PenstockError):
    """The master answered with an error code."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"the master answered {code}: {remark or 'no reason given'}")
        self.code = code


class Follower(NamedTuple):
    """Who follows: the names that a slave has in common with its master, and its own id."""

    cluster: str
    broker: str
    broker_id: int
    learner: bool = False
    """Whether it never counts for an acknowledgement."""


class MasterLink:
    """The master's two addresses, for its log and for clients, and one connection to the latter."""

    def __init__(self, settings: Settings, broker: BrokerSettings) -> None:
        """Reads the addresses and the account from the settings. Raises BadSettings."""
        self.who = Follower(
            broker.broker_cluster_name, broker.broker_name, broker.broker_id, learner=broker.async_learner
        )
        self.expected_epoch: int | None = None
        """The epoch in which the master must be, if something else decides on masters; see `expect_epoch`."""
        self._configured_log = settings.ha_master_address
        self._configured_clients = broker.master_addr
        if settings.ha_master_address and not (broker.master_addr or broker.name_servers):
            raise BadSettings(
                "haMasterAddress needs masterAddr or namesrvAddr: a slave also sends ordinary requests to its master"
            )
        if settings.ha_master_address:
            parse_address(settings.ha_master_address, "haMasterAddress")
        if broker.master_addr:
            parse_address(broker.master_addr, "masterAddr")
        self._account = None if broker.ha_account_file is None else _read_account(broker.ha_account_file)
        self._signer = None if self._account is None else RequestSigner(*self._account)
        proof = broker.ha_master_proof
        self._needs_proof = proof == "required" or (proof == "auto" and broker.acl_enable)
        if self._needs_proof and self._account is None:
            raise BadSettings(
                "with access control, a slave follows only a master that proves that it knows the secret of an account "
                "that both have; set haAccountFile, or haMasterProof=off to follow any master"
            )
        self.tls = client_tls(settings.broker)
        self._found_log = self._found_clients = ""
        self._connection: Connection | None = None
        self.known = asyncio.Event()
        """Set once both addresses are known."""
        self._set_known()

    # -- addresses -------------------------------------------------------------------------------------------

    def set_addresses(self, log_address: str, client_address: str) -> None:
        """Sets the addresses that a name server reports. Addresses in the settings take precedence."""
        if client_address:
            self._found_clients = client_address
        if log_address:
            self._found_log = log_address
        self._set_known()

    def direct(self, log_address: str, client_address: str) -> None:
        """Sets the addresses of the master that was elected. They take precedence over all others."""
        self.close()
        self._configured_log, self._configured_clients = log_address, client_address
        self._set_known()

    def expect_epoch(self, epoch: int | None) -> None:
        """From now on only a master in exactly this epoch is followed; None: any that is not older than this slave."""
        self.expected_epoch = epoch

    def _set_known(self) -> None:
        if self.log_address and self.client_address:
            self.known.set()

    @property
    def log_address(self) -> str:
        """The address from which the master sends its log; empty if unknown."""
        return self._configured_log or self._found_log

    @property
    def client_address(self) -> str:
        """The address at which the master serves clients; empty if unknown."""
        return self._configured_clients or self._found_clients

    # -- requests --------------------------------------------------------------------------------------------

    async def ask(self, code: RequestCode, arguments: Mapping[str, str] | None = None) -> Command:
        """Sends a request and returns the master's reply.

        Raises Unreachable, NoAnswer, MasterRefused, or NoMasterProof.
        """
        return await self._ask(await self._connect(), code, arguments)

    async def _ask(
        self, connection: Connection, code: RequestCode, arguments: Mapping[str, str] | None = None
    ) -> Command:
        command = Command(code, dict(arguments or {}))
        if self._signer is not None:
            self._signer.sign(command)
        reply = await connection.request(command, _WAIT_S)
        if reply.code != ResponseCode.SUCCESS:
            raise MasterRefused(reply.code, reply.remark or "")
        return reply

    async def ask_for_ticket(self, port: int) -> None:
        """Asks the master to admit a connection to its replication port from a port of this host.

        Does nothing without an account. Raises NoMasterProof if the master must prove itself and does not, or if it
        sends its log from another address than a name server says; and the errors of `ask`.
        """
        if self._account is not None:
            await self._follow(await self._connect(), self._account, port)

    async def _follow(self, connection: Connection, account: tuple[str, str], port: int) -> None:
        request = Follow(nonce=secrets.token_hex(16), port=port, access_key=account[0])
        try:
            reply = await self._ask(connection, RequestCode.PENSTOCK_FOLLOW, fields.write(request))
        except MasterRefused as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and not self._needs_proof:
                return  # a RocketMQ master, or one that needs no ticket
            raise
        if not self._needs_proof:
            return
        answer = reply.read(FollowReply)
        check_proof(account[1], request, answer, connection.peer)
        if port and not self._configured_log and self._found_log != answer.ha_address:
            raise NoMasterProof(
                f"a name server says that the master sends its log from {self._found_log}, but the master says "
                f"{answer.ha_address or 'that it does not'}; nothing is copied"
            )

    @property
    def has_account(self) -> bool:
        """Whether this slave has an account, with which it asks for tickets."""
        return self._account is not None

    async def _connect(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            where = f"{self._connection.peer[0]}:{self._connection.peer[1]}"
            if where == self.client_address:
                return self._connection
            self._connection.close()
        if not self.client_address:
            raise Unreachable("no name server knows the master; set masterAddr, or start the master")
        address: Address = parse_address(self.client_address, "masterAddr")
        connection = await connect(address, tls=self.tls, limits=ConnectionLimits(frame_bytes=_MAX_BODY))
        if self._needs_proof and self._account is not None:
            try:
                await self._follow(connection, self._account, 0)
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _read_account(path: Path) -> tuple[str, str]:
    """Reads `accessKey: x` and `secretKey: y`, the format of mqadmin's tools.yml. Returns both. Raises BadSettings."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadSettings(f"haAccountFile cannot be read: {why}; check its path and permissions", path=path) from None
    pairs = (re.split(r"\s*[:=]\s*", line.strip(), maxsplit=1) for line in lines)
    account = {pair[0]: pair[1].strip("'\"") for pair in pairs if len(pair) == 2}
    if not account.get("accessKey") or not account.get("secretKey"):
        raise BadSettings("haAccountFile needs the lines accessKey: … and secretKey: …", path=path)
    return account["accessKey"], account["secretKey"]


# -- are the logs the same? ----------------------------------------------------------------------------------

_NEW_START = "move this store away, and start the slave with an empty folder or a copy of the master's store"


class LogMismatch(PenstockError):
    """This slave's log is not a prefix of the master's. Nothing was appended to it."""


class Master(NamedTuple):
    """The facts that a master reports about itself."""

    is_penstock: bool
    begins_at: int | None
    """The physical offset at which the master's log begins; None if unknown."""
    ends_at: int | None
    shakes_hands: bool
    """Whether it knows the handshake with epochs."""


async def ask_master(link: MasterLink) -> Master:
    """Asks the master about itself. Raises the errors of `MasterLink.ask`."""
    runtime_info = KVTable.from_bytes((await link.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    lowest, highest = _number(runtime_info, "commitLogMinOffset"), _number(runtime_info, "commitLogMaxOffset")
    knows = _number(runtime_info, RUNTIME_KEY)
    return Master(
        "penstockVersion" in runtime_info, None if lowest is None else max(lowest, 0), highest, knows is not None
    )


async def check_same_log(store: MessageStore, link: MasterLink, master: Master) -> None:
    """Checks that this log is a prefix of the master's. Raises LogMismatch if it is not, and the errors of `ask`."""
    end = store.log.queue.wrote_offset
    if not end:
        return
    lowest, highest = master.begins_at, master.ends_at
    if highest is not None and end > highest:
        raise LogMismatch(
            f"this slave has {end} bytes of log and its master only {highest}: the master has lost messages that are "
            f"here, or it is a different master; nothing is copied; decide which store to keep; {_NEW_START}"
        )
    if lowest is not None and end < lowest:
        raise LogMismatch(
            f"this slave's log ends at {end}, but the master has deleted its own up to {lowest}: the part between "
            f"them is lost; {_NEW_START}"
        )
    await compare_before(store, link, end, lowest)


async def compare_before(store: MessageStore, link: MasterLink, end: int, lowest: int | None) -> None:
    """Checks that the master has this slave's last message before `end`. Raises LogMismatch, and the errors of `ask`.

    A message before `lowest`, which the master has deleted, cannot be compared.
    """
    newest = await asyncio.to_thread(last_record, store.log, store.queues, end)
    if newest is None or (lowest is not None and newest[0] < lowest):
        return
    offset, own = newest
    try:
        theirs = bytes((await link.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})).body)
    except MasterRefused as error:
        raise LogMismatch(
            f"this slave's newest message, {_describe(own)}, is at {offset}, where the master has none ({error}); "
            f"nothing is copied; {_NEW_START}"
        ) from None
    if theirs != own:
        raise LogMismatch(
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
        return f"{len(data)} bytes that are not a message"
    return f"message {record.queue_offset} of {record.topic} queue {record.queue_id} stored at {record.store_timestamp}"


# -- tables --------------------------------------------------------------------------------------------------

_COPY: Final = "copy of the master's tables"
_EVERY_S: Final = 10.0
_ELECTED_EVERY_S: Final = 1.0
"""With failover: after an election, consumers go on from what was copied last."""
_MIN_PAUSE_S: Final = 0.1
"""Seconds between two copies, however many new topics arrive."""
_LOOK_S: Final = 0.1
"""Seconds between two looks whether the log has what the positions that are kept aside rest on."""


class _Aside(NamedTuple):
    """Positions of the master's own progress that this slave does not believe yet."""

    connection: object
    """The connection by which the log came when the master was asked."""
    offsets: ConsumerOffsets
    offsets_end: int
    """The offsets of the master's own groups rest on its log before this offset."""
    delays: DelayOffsets
    delays_end: int


class ConfigCopy:
    """Copies the master's tables, from `start` until the broker's tasks stop."""

    def __init__(
        self, state: BrokerState, link: MasterLink, connection: Callable[[], object | None] = lambda: None
    ) -> None:
        """`connection` returns what stands for the connection by which the log comes now; None if there is none."""
        self._state = state
        self._link = link
        self._connection = connection
        self._aside: _Aside | None = None
        self._every_s = _EVERY_S if state.settings.now.failover == "off" else _ELECTED_EVERY_S
        self._deleted: dict[str, int] = {}
        """The master's deletions that were repeated here: by topic, the physical offset before which it is deleted."""
        self._loop = asyncio.get_running_loop()
        self._soon = asyncio.Event()
        self.copies = 0
        """How often all tables were copied so far."""

    def start(self) -> None:
        self._state.store.on_arrival(self._on_arrival)
        self._state.tasks.run(_COPY, self._run)

    def _on_arrival(self, topic: str, *_: object) -> None:
        """Requests a copy if the topic of a new message is unknown. The dispatch thread calls this."""
        if self._state.topics.find(topic) is None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._soon.set)

    async def _run(self) -> None:
        await self._link.known.wait()
        while True:
            self._soon.clear()
            await self.copy()
            self._state.tasks.recovered(_COPY)
            await asyncio.sleep(_MIN_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._wait()

    async def _wait(self) -> None:
        """Returns when another copy is requested. Takes over meanwhile what is kept aside."""
        while self._aside is not None and not self._soon.is_set():
            await asyncio.sleep(_LOOK_S)
            self._take_over()
        await self._soon.wait()

    async def copy(self) -> None:
        """Copies all four tables, one after the other. If it raises PenstockError, the tables copied so far stay.

        The master's own progress is kept aside until this slave's log has what it rests on. What is kept aside already
        is not replaced: otherwise a slave that is always behind would never take anything over.
        """
        state, ask, connection = self._state, self._link.ask, self._connection()
        reply = await ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        state.topics.replace(decode_config(TopicConfigs, reply.body))
        await self._delete(decode_deleted(reply.read(AllTopicsReply).penstock_deleted_topics or ""))
        groups = decode_config(SubscriptionGroups, (await ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
        state.groups.replace(groups)
        reply = await ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        offsets, offsets_end = decode_config(ConsumerOffsets, reply.body), reply.read(ProgressReply).penstock_log_end
        state.offsets.replace(offsets)
        reply = await ask(RequestCode.GET_ALL_DELAY_OFFSET)
        delays, delays_end = decode_config(DelayOffsets, reply.body), reply.read(ProgressReply).penstock_log_end
        if offsets_end is None or delays_end is None:
            offsets_end = delays_end = (await ask_master(self._link)).ends_at
        self._take_over()
        if self._aside is None and connection is not None and offsets_end is not None and delays_end is not None:
            self._aside = _Aside(connection, offsets, offsets_end, delays, delays_end)
            self._take_over()
        self.copies += 1

    def _take_over(self) -> bool:
        """Takes over what is kept aside, if this log has all that it rests on. Returns whether it has.

        Forgets it if the log comes by another connection now.
        """
        aside = self._aside
        if aside is None:
            return False
        if aside.connection is not self._connection():
            self._aside = None
            return False
        if self._state.store.log.queue.wrote_offset < max(aside.offsets_end, aside.delays_end):
            return False
        self._aside = None
        self._state.own_offsets.replace(aside.offsets, aside.offsets_end)
        self._state.delayed.replace(aside.delays, aside.delays_end)
        return True

    async def _delete(self, deleted: dict[str, int]) -> None:
        """Repeats the master's deletions. One behind the end of this log waits until the log has reached it."""
        log_end = self._state.store.log.queue.wrote_offset
        reached = {topic: end for topic, end in deleted.items() if end <= log_end}
        if reached != self._deleted:
            for topic in await asyncio.to_thread(self._state.store.delete_as_master, reached):
                log.info("deleted topic %s, as the master did", topic)
            self._deleted = reached
