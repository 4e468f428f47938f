"""ZooKeeper as the engine, through kazoo: a ZooKeeper session is the lease, and keys on the lease are ephemeral nodes.

**Versions.** The version that ZooKeeper counts for a node restarts when the node is deleted and made again, so a check
of it alone cannot tell the two apart. A key's version here is the node's `mzxid`, which is never used twice. Every
transaction also checks and sets the prefix's own node, whose version is the revision. A transaction is made from a read
of all keys at one revision. If another one comes first, it fails as a whole, and is made again from the next read. Only
the end of a session changes nodes without a new revision, and it can only delete ephemeral ones. So a key that is
expected to be absent stays absent. A key that is expected with a version is checked in the transaction, which fails if
the key has vanished meanwhile; it cannot have come back without a new revision.

**Reads.** A read of several nodes is repeated until neither the revision nor a list of children changes meanwhile. A
transaction that only checks comes before it: a majority of nodes has to agree, which `sync` does not need. So a view is
linearizable.

**The lease.** A renewal is such a checking transaction. If the connection is at another node than ZooKeeper's leader,
the leader hears of it with that node's next report, every half tick. So the deadline is when the renewal *before* the
last answered one was sent, plus the session's time: with ticks of at most a third of it, the leader has heard of that
one. kazoo is not asked whether the session lives. kazoo also pings by itself, which would keep the session of a broker
that does not renew its lease: after the deadline nothing but renewals is sent. When a session ends, or its thread in
kazoo does, kazoo may not open another one: `renew` returns False, and the keeper opens a new Session.

kazoo has three daemon threads for a session, named penstock-zookeeper. Watches are hints: something may have changed.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kazoo import exceptions as failures
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from penstock.broker.failover.consensus_engine import (
    ABSENT,
    HISTORY,
    LEADER,
    MAX_REPLICAS,
    MAX_VIEW,
    MEMBERS,
    REQUEST,
    STATE,
    BadEngine,
    Committed,
    EngineAway,
    KeyValue,
    Mastership,
    NotExpected,
    Outcome,
    Transaction,
    Unknown,
    View,
    boot_time,
    decode_history,
    member_key,
)

_TRY_S: Final = 0.5
_WITHOUT_LEASE_S: Final = 10
"""The session's time of an operator's command."""
_OPEN_S: Final = 3.0
_ROUNDS: Final = 2
"""How often each node is tried for one renewal."""
_READS: Final = 20
_ATTEMPTS: Final = 20
"""How often a transaction that others were faster than is made again."""
_CONNECT_HEAD: Final = 12
"""Bytes of the answer to a connect request up to the granted time: length, protocol version, time in ms."""

_quiet = logging.getLogger("penstock.failover.kazoo")
_quiet.setLevel(logging.ERROR)
"""kazoo's own words: lost connections are reported as EngineAway, and details would show the account."""

_AWAY: Final = (
    failures.ConnectionLoss,
    failures.ConnectionClosedError,
    failures.SessionExpiredError,
    failures.SessionMovedError,
    failures.OperationTimeoutError,
    KazooTimeoutError,
)
_AGAIN: Final = (
    failures.BadVersionError,
    failures.NoNodeError,
    failures.NodeExistsError,
    failures.RolledBackError,
    failures.RuntimeInconsistency,
    failures.SessionMovedError,
)
"""What the steps of a transaction report if something else was first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperNodes:
    """How to reach ZooKeeper."""

    addresses: Sequence[tuple[str, int]]
    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = ""


# -- connections -------------------------------------------------------------------------------------------------


class _Wire:
    """A connection as kazoo uses it. Long answers are refused, and so is sending when it is not allowed."""

    def __init__(
        self,
        connected: socket.socket,
        made_at: float,
        may_send: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        """`tell` is called with what is wrong with an answer."""
        self._socket = connected
        self.made_at = made_at
        self._may_send = may_send
        self._tell = tell
        self._head = b""

    @property
    def granted_ms(self) -> int:
        """The session's time as the node granted it; 0 until it has. kazoo does not keep it."""
        return int.from_bytes(self._head[8:], "big", signed=True) if len(self._head) == _CONNECT_HEAD else 0

    def recv(self, size: int) -> bytes:
        if size > MAX_VIEW:
            self._tell(f"an answer has more than {MAX_VIEW} bytes")
            raise OSError("the answer is too long")
        data = self._socket.recv(size)
        if len(self._head) < _CONNECT_HEAD:
            self._head += data[: _CONNECT_HEAD - len(self._head)]
        return data

    def send(self, data: bytes) -> int:
        if not self._may_send():
            raise OSError("the lease is not renewed")
        return self._socket.send(data)

    def pending(self) -> int:
        return self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def cut(self) -> None:
        """Ends the connection; kazoo's thread notices. Any thread may call it."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not TLS's, which would go on without encryption

    def close(self) -> None:
        self._socket.close()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Makes kazoo's threads and connections."""

    def __init__(
        self, nodes: ZookeeperNodes, try_s: float, clock: Callable[[], float], may_send: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._nodes = nodes
        self._try_s = try_s
        self._clock = clock
        self._may_send = may_send
        self.wire: _Wire | None = None
        self.is_shut = False
        """Whether the session has ended: kazoo must not open another one."""
        self.problem = "no connection"

    def create_connection(self, address: tuple[str, int], hostname: str = "", **_: Any) -> _Wire:
        if self.is_shut or not self._may_send():
            raise OSError("the session is not used any more")
        try:
            connected = socket.create_connection(address, self._try_s)
            try:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._nodes.tls is not None:
                    connected = self._nodes.tls.wrap_socket(connected, server_hostname=hostname or address[0])
            except BaseException:
                connected.close()
                raise
        except OSError as error:
            self.problem = "{}:{}: {}".format(*address[:2], error.strerror or error)
            raise
        self.wire = _Wire(connected, self._clock(), self._may_send, self._note)
        return self.wire

    def _note(self, problem: str) -> None:
        self.problem = problem

    def cut(self) -> None:
        """Has kazoo go on with the next node."""
        if self.wire is not None:
            self.wire.cut()

    def shut(self) -> None:
        """Ends the connection for good."""
        self.is_shut = True
        self.cut()

    def spawn(self, function: Callable[..., object], *arguments: Any, **named: Any) -> threading.Thread:
        thread = threading.Thread(target=function, args=arguments, kwargs=named, name="penstock-zookeeper", daemon=True)
        thread.start()
        return thread


# -- what is read ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All nodes but the history at one moment."""

    revision: int = 0
    version: int = -1
    """Of the prefix's node; -1 if it does not exist."""
    values: Mapping[str, bytes] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    """Of these nodes, and of those that were asked for; only of those that exist."""

    def stat(self, key: str) -> Any:
        return self.stats.get(key)


# -- sessions ----------------------------------------------------------------------------------------------------


class ZookeeperSession:
    """A session at ZooKeeper. `consensus_engine.Session` has the contract."""

    def __init__(self, nodes: ZookeeperNodes, prefix: str, ttl_s: int, clock: Callable[[], float] = boot_time) -> None:
        """Opens a session of `ttl_s` seconds; 0: without keys of its own, for reads and an operator's changes.

        Raises EngineAway, or BadEngine if ZooKeeper grants another time.
        """
        self._nodes = nodes
        self._root = prefix.rstrip("/")
        self._clock = clock
        self._ttl_s = ttl_s
        self._try_s = min(_TRY_S, ttl_s / 8) if ttl_s else 2.0
        self._answer_s = ttl_s / 4 if ttl_s else 5.0
        self._connected = threading.Event()
        self._changed = threading.Event()
        self._is_armed = False
        """Whether the watches are set."""
        self._has_root = False
        self._is_forced = True
        """Whether to send, whatever the deadline."""
        self._deadline = -1.0
        self._touched = (0.0, 0.0)
        """When the last answered renewal was sent, and when it was answered."""
        self._handler = _Handler(nodes, self._try_s, clock, self._may_send)
        self._acl = [make_digest_acl(nodes.user, nodes.password, all=True)] if nodes.user else OPEN_ACL_UNSAFE
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in nodes.addresses)
        self._client = KazooClient(
            hosts=hosts,
            timeout=float(ttl_s or _WITHOUT_LEASE_S),
            handler=self._handler,
            auth_data=[("digest", f"{nodes.user}:{nodes.password}")] if nodes.user else None,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, max_delay=0.5, sleep_func=SequentialThreadingHandler.sleep_func
            ),
            logger=_quiet,
        )
        self._client.add_listener(self._on_state)
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self._is_forced = False

    def _open(self) -> None:
        try:
            self._client.start(_OPEN_S)
        except KazooTimeoutError:
            raise EngineAway(f"no node of ZooKeeper answers ({self._handler.problem})") from None
        client_id, wire = self._client.client_id, self._handler.wire
        if client_id is None or wire is None:
            raise EngineAway("the connection to ZooKeeper was lost at once")
        self._session_id: int = client_id[0]
        if not self._ttl_s:
            return
        if wire.granted_ms != self._ttl_s * 1000:
            self.release()
            raise BadEngine(
                f"ZooKeeper granted a session of {wire.granted_ms} ms instead of {self._ttl_s * 1000} ms; set "
                "failoverTtlMillis to what it allows, or change its tickTime, minSessionTimeout or maxSessionTimeout"
            )
        self._deadline = wire.made_at + self._ttl_s
        self._touched = (wire.made_at, self._clock())

    def _on_state(self, state: str) -> None:
        """kazoo's thread calls this before it does anything else about a change."""
        if state == KazooState.CONNECTED:
            self._connected.set()
            return
        self._connected.clear()
        if state == KazooState.LOST:
            self._handler.is_shut = True
        self._changed.set()

    def _may_send(self) -> bool:
        return self._is_forced or not self._ttl_s or self._clock() < self._deadline

    # -- the lease --------------------------------------------------------------------------------------------

    @property
    def ttl_s(self) -> float:
        return float(self._ttl_s)

    @property
    def deadline(self) -> float:
        return self._deadline

    def renew(self) -> bool:
        problem = "no node of ZooKeeper answers"
        self._is_forced = True
        try:
            for _ in range(_ROUNDS * len(self._nodes.addresses)):
                if self._handler.is_shut:
                    return False
                began = self._clock()
                try:
                    self._barrier(self._try_s)
                except BadEngine as error:
                    raise EngineAway(str(error)) from None
                except EngineAway as error:
                    problem = str(error)
                    if len(self._nodes.addresses) > 1:
                        self._handler.cut()
                else:
                    self._renewed(began)
                    return True
        finally:
            self._is_forced = False
        if self._handler.is_shut:
            return False
        raise EngineAway(problem)

    def _renewed(self, began: float) -> None:
        sent, answered = self._touched
        now = self._clock()
        if now - answered >= self._ttl_s / 6:  # by now the leader has heard of the one before
            granted_ms = 0 if self._handler.wire is None else self._handler.wire.granted_ms
            granted_s = granted_ms / 1000 or self._ttl_s  # a node that it reconnects to may grant less
            self._deadline = max(self._deadline, sent + min(self._ttl_s, granted_s))
            self._touched = (began, now)

    def release(self) -> None:
        if not self._ttl_s or self._handler.is_shut:
            return
        self._is_forced = True
        self._connected.wait(self._try_s)  # without a connection the end of the session cannot be said
        with contextlib.suppress(Exception):
            self._client.stop()
        self._handler.shut()

    def close(self) -> None:
        self._handler.shut()  # so that kazoo does not end the session
        with contextlib.suppress(Exception):
            self._client.stop()
        with contextlib.suppress(Exception):
            self._client.close()
        self._changed.set()

    # -- reads ------------------------------------------------------------------------------------------------

    def view(self) -> View:
        self._barrier(self._answer_s)
        return self._view(self._read())

    def history(self, limit: int) -> list[Mastership]:
        self._barrier(self._answer_s)
        (names,) = self._ask(lambda: [self._client.get_children_async(self._folder(HISTORY))])
        known = [name for name in names or () if name.isascii() and name.isdigit()]
        keys = [HISTORY + name for name in sorted(known, key=int, reverse=True)[:limit]]
        answers = self._ask(lambda: [self._client.get_async(self._path(key)) for key in keys])
        found = [(key, answer[0] or b"") for key, answer in zip(keys, answers, strict=True) if answer is not None]
        return [decode_history(key, value) for key, value in found]

    def _read(self, also: Iterable[str] = ()) -> _Snapshot:
        """Reads all keys but the history, and whether the keys `also` exist, at one moment."""
        wanted = list(also)
        for _ in range(_READS):
            found = self._read_once(wanted)
            if found is not None:
                return found
        raise EngineAway("the keys in ZooKeeper change faster than they can be read")

    def _read_once(self, also: list[str]) -> _Snapshot | None:
        """Returns None if something changed meanwhile."""
        folders = (self._root, self._folder(MEMBERS))
        self._is_armed = True  # before the watches are: they may be gone at once

        def list_keys() -> list[Any]:
            lists = [self._client.get_children_async(each, watch=self._hint, include_data=True) for each in folders]
            return [self._client.exists_async(self._root, watch=self._hint), *lists]

        _, root, members = self._ask(list_keys)
        if root is None:
            return _Snapshot()
        numbers = [int(name) for name in (members or ([],))[0] if name.isascii() and name.isdigit()]
        keys = [key for key in (STATE, LEADER, REQUEST) if key in root[0]]
        keys += [member_key(number) for number in sorted(numbers)[:MAX_REPLICAS]]

        def read_keys() -> list[Any]:
            reads = [self._client.get_async(self._path(key)) for key in keys]
            return reads + [self._client.exists_async(path) for path in (*map(self._path, also), *folders)]

        answers = self._ask(read_keys)
        values, others, after = answers[: len(keys)], answers[len(keys) : -2], answers[-2:]
        before = [root[1], None if members is None else members[1]]
        if None in values or [_stamp(each) for each in before] != [_stamp(each) for each in after]:
            return None
        if sum(stat.dataLength for _, stat in values) > MAX_VIEW:
            raise BadEngine(f"the keys in ZooKeeper have more than {MAX_VIEW} bytes; remove what wrote them")
        stats = {key: stat for key, stat in zip(also, others, strict=True) if stat is not None}
        return _Snapshot(
            revision=max(0 if each is None else max(each.mzxid, each.pzxid) for each in before),
            version=root[1].version,
            values={key: value or b"" for key, (value, _) in zip(keys, values, strict=True)},
            stats=stats | {key: stat for key, (_, stat) in zip(keys, values, strict=True)},
        )

    def _view(self, found: _Snapshot) -> View:
        entries = {
            key: KeyValue(value, found.stat(key).mzxid, self._is_mine(found.stat(key)))
            for key, value in found.values.items()
        }
        return View.of(found.revision, entries)

    def _is_mine(self, stat: Any) -> bool:
        return self._ttl_s > 0 and stat is not None and stat.ephemeralOwner == self._session_id

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _folder(self, begin: str) -> str:
        return self._path(begin.rstrip("/"))

    # -- transactions -----------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction) -> Outcome:
        try:
            return self._commit(transaction)
        except EngineAway as error:
            return Unknown(str(error)) if not self._handler.is_shut else self._after_the_end(str(error))

    def _commit(self, transaction: Transaction) -> Outcome:
        """Raises EngineAway only if nothing was changed."""
        keys = {*transaction.expected, *transaction.puts, *transaction.deletes} - {STATE, LEADER, REQUEST}
        is_new = False
        for _ in range(_ATTEMPTS):
            if not self._has_root:
                self._make_root()
            found = self._read(sorted(keys))
            if found.version < 0:
                self._has_root = False
            elif not self._holds(transaction, found):
                if is_new:
                    return NotExpected(self._view(found))
                self._barrier(self._answer_s)  # this node may be behind
                is_new = True
            else:
                outcome = self._carry_out(transaction, found)
                if outcome is not None:
                    return outcome
        raise EngineAway("others change the keys in ZooKeeper all the time")

    def _holds(self, transaction: Transaction, found: _Snapshot) -> bool:
        if transaction.mine and not self._is_mine(found.stat(LEADER)):
            return False
        stats = {key: found.stat(key) for key in transaction.expected}
        return all(
            (ABSENT if stats[key] is None else stats[key].mzxid) == version
            for key, version in transaction.expected.items()
        )

    def _carry_out(self, transaction: Transaction, found: _Snapshot) -> Outcome | None:
        """Returns None if something else was first."""
        steps = self._client.transaction()
        steps.set_data(self._root, b"", found.version)
        checked = {key for key, version in transaction.expected.items() if version != ABSENT}
        for key in sorted(checked | ({LEADER} if transaction.mine else set())):
            steps.check(self._path(key), found.stat(key).version)
        for key in sorted(transaction.deletes):
            if found.stat(key) is not None:
                steps.delete(self._path(key), found.stat(key).version)
        for key, value in transaction.puts.items():
            is_leased, stat = key in transaction.leased, found.stat(key)
            if stat is not None and stat.ephemeralOwner == (self._session_id if is_leased else 0):
                steps.set_data(self._path(key), value, stat.version)
                continue
            if stat is not None:  # the owner of a node cannot be changed
                steps.delete(self._path(key), stat.version)
            steps.create(self._path(key), value, acl=self._acl, ephemeral=is_leased)
        self._check_state()
        try:
            results = steps.commit_async().get(timeout=self._answer_s)
        except failures.SessionExpiredError as error:  # ZooKeeper's answer: it was not carried out
            self._handler.shut()
            raise EngineAway(_name(error)) from None
        except failures.NoAuthError:
            raise self._refused(f"the transaction `{transaction.what}`") from None
        except Exception as error:
            return Unknown(f"the transaction was sent, and the answer is lost: {_name(error)}")
        problems = [each for each in results if isinstance(each, Exception)]
        if not problems:
            try:
                return Committed(self._view(self._read()))
            except EngineAway as error:
                return Unknown(str(error))
        for problem in problems:
            if isinstance(problem, failures.NoAuthError):
                raise self._refused(f"the transaction `{transaction.what}`")
            if isinstance(problem, failures.SessionExpiredError):
                self._handler.shut()
                raise EngineAway(_name(problem))
            if not isinstance(problem, _AGAIN):
                raise BadEngine(f"ZooKeeper refuses the transaction `{transaction.what}`: {_name(problem)}")
        return None

    def _after_the_end(self, why: str) -> Outcome:
        """The session has ended, so nothing was changed; another one reads."""
        try:
            other = ZookeeperSession(self._nodes, self._root, 0, self._clock)
        except EngineAway:
            return Unknown(why)
        try:
            return NotExpected(other.view())
        except EngineAway:
            return Unknown(why)
        finally:
            other.close()

    def _make_root(self) -> None:
        """Makes the nodes that hold the keys, where they are missing."""
        parts = self._root.strip("/").split("/")
        paths = ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
        paths += [self._folder(MEMBERS), self._folder(HISTORY)]
        there = self._ask(lambda: [self._client.exists_async(path) for path in paths])
        missing = [path for path, stat in zip(paths, there, strict=True) if stat is None]
        with contextlib.suppress(failures.NodeExistsError):  # another broker makes them as well; the next read tells
            self._ask(lambda: [self._client.create_async(path, b"", acl=self._acl) for path in missing])
        self._has_root = True

    # -- requests ---------------------------------------------------------------------------------------------

    def _check_state(self) -> None:
        """Raises EngineAway if nothing can be sent."""
        if self._handler.is_shut:
            raise EngineAway("the session at ZooKeeper has ended")
        if not self._may_send():
            raise EngineAway("the lease at ZooKeeper was not renewed")

    def _ask(self, send: Callable[[], list[Any]], limit_s: float = 0.0) -> list[Any]:
        """Returns the answers to requests that may be repeated, None where a node does not exist.

        Raises EngineAway, BadEngine or kazoo's NodeExistsError.
        """
        limit_s = limit_s or self._answer_s
        until = time.monotonic() + limit_s
        self._check_state()
        if not self._connected.wait(limit_s):
            self._check_state()
            raise EngineAway(f"no node of ZooKeeper answers ({self._handler.problem})")
        try:
            return [_answer(each, until) for each in send()]
        except failures.NodeExistsError:
            raise
        except (failures.NoAuthError, failures.AuthFailedError):
            raise self._refused("a request") from None
        except _AWAY as error:
            raise EngineAway(f"no answer of ZooKeeper within {limit_s:g} s ({_name(error)})") from None
        except failures.ZookeeperError as error:
            raise BadEngine(f"ZooKeeper refuses a request: {_name(error)}") from None
        except Exception as error:  # kazoo passes on whatever it fails with at an answer
            raise EngineAway(f"the answer is not ZooKeeper's: {_name(error)}") from None

    def _barrier(self, limit_s: float) -> None:
        """Has a majority of ZooKeeper's nodes agree to a transaction that changes nothing."""

        def send() -> list[Any]:
            steps = self._client.transaction()
            steps.check(self._root, -1)
            return [steps.commit_async()]

        (results,) = self._ask(send, limit_s)
        for problem in results:
            if isinstance(problem, failures.SessionExpiredError):
                self._handler.shut()
                raise EngineAway(_name(problem))
            if isinstance(problem, failures.NoAuthError):
                raise self._refused("a request")
            if isinstance(problem, Exception) and not isinstance(problem, failures.NoNodeError):
                raise EngineAway(_name(problem))

    def _refused(self, what: str) -> BadEngine:
        return BadEngine(
            f"ZooKeeper refuses {what} under {self._root}: the account may not do it; check dcsAccountFile, and the "
            "access list of that node"
        )

    # -- hints ------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        if not self._is_armed and self._connected.is_set():
            with contextlib.suppress(EngineAway, BadEngine):
                self._read()
                return  # something may have changed before the watches were set
        if self._changed.wait(min(max(seconds, 0.0), threading.TIMEOUT_MAX)):
            self._changed.clear()

    def wake(self) -> None:
        self._changed.set()

    def _hint(self, event: object) -> None:
        """A thread of kazoo calls this."""
        self._is_armed = False
        self._changed.set()


def _answer(result: Any, until: float) -> Any:
    try:
        return result.get(timeout=max(until - time.monotonic(), 0.001))
    except failures.NoNodeError:
        return None


def _stamp(stat: Any) -> tuple[int, int] | None:
    """Differs if a node, or the list of its children, has changed."""
    return None if stat is None else (stat.mzxid, stat.pzxid)


def _name(error: BaseException) -> str:
    name = type(error).__name__.removesuffix("Error")
    return f"{name}: {error}" if str(error) else name
