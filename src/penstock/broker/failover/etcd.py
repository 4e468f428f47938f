"""etcd as the engine, through its HTTP/JSON gateway (`/v3/...`): grant, keepalive, txn, range and watch are five POSTs.

Keys and values are base64 and 64-bit numbers are texts, as the gateway wants them. One read covers all keys but the
history, because `history/` sorts before the others. A transaction reads the same range in its answer. An answer is
refused if it is longer than MAX_VIEW, or is not of the shape that etcd's documents state.

A try takes at most min(0.5 s, TTL / 8); then the next address is tried at once. A transaction is sent once: if it was
sent and not answered, its outcome is Unknown. "not a primary lessor" means that the node has just lost its leadership,
and is answered by the next address. The watch only says that something may have changed; the read is the truth.

A session has two channels: one for its keeper, one for the thread that renews.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from penstock.broker.failover.consensus_engine import (
    HISTORY,
    LEADER,
    MAX_VIEW,
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
)
from penstock.format.msgspec_warm_up import prepared

_TRY_S: Final = 0.5
_AUTHENTICATE_S: Final = 3.0
"""etcd hashes passwords slowly, on purpose. A token is used for minutes."""
_ROUNDS: Final = 2
"""How often all addresses are tried for one request."""
_WATCH_AGAIN_S: Final = 1.0
_WATCH_READ: Final = 64 << 10

# Codes of gRPC, as the gateway reports them.
_INVALID, _NOT_FOUND, _DENIED, _PRECONDITION, _UNAUTHENTICATED = 3, 5, 7, 9, 16
_FINAL: Final = {_INVALID, _DENIED, _PRECONDITION}


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdNodes:
    """How to reach etcd."""

    addresses: Sequence[tuple[str, int]]
    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = ""


class _Failed(Exception):
    """A try failed. `was_sent` says whether the node may have carried the request out."""

    def __init__(self, why: str, *, was_sent: bool, code: int = 0) -> None:
        super().__init__(why)
        self.was_sent = was_sent
        self.code = code


# -- answers -----------------------------------------------------------------------------------------------------


class _Header(msgspec.Struct):
    revision: int = 0


class _KeyValue(msgspec.Struct):
    key: bytes
    mod_revision: int
    value: bytes = b""
    lease: int = 0


class _Range(msgspec.Struct):
    header: _Header | None = None
    kvs: list[_KeyValue] = []


class _OneResponse(msgspec.Struct):
    response_range: _Range | None = None


class _Txn(msgspec.Struct):
    header: _Header
    succeeded: bool = False
    responses: list[_OneResponse] = []


class _Grant(msgspec.Struct, rename={"lease": "ID", "ttl": "TTL"}):
    lease: int
    ttl: int


class _Alive(msgspec.Struct, rename={"ttl": "TTL"}):
    ttl: int = 0


class _KeepAlive(msgspec.Struct):
    result: _Alive


class _Token(msgspec.Struct):
    token: str


class _Problem(msgspec.Struct):
    code: int = 0
    message: str = ""
    error: msgspec.Raw = msgspec.Raw(b"null")


A = TypeVar("A")


def _decode(body: bytes, kind: type[A]) -> A:
    try:
        return msgspec.json.decode(body, type=prepared(kind), strict=False)  # numbers are texts
    except msgspec.MsgspecError as error:
        raise _Failed(f"the answer is not etcd's: {error}", was_sent=True) from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# -- channels ----------------------------------------------------------------------------------------------------


class _Channel:
    """One connection at a time, to one node of several. For one thread."""

    def __init__(self, nodes: EtcdNodes, try_s: float) -> None:
        self._nodes = nodes
        self._try_s = try_s
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None
        self._token = ""

    @property
    def address(self) -> tuple[str, int]:
        """The node that answered last."""
        return self._nodes.addresses[self._at]

    def ask(self, path: str, request: Mapping[str, Any], kind: type[A]) -> A:
        """Returns the answer of the first node that has one, for a request that may be repeated.

        Raises EngineAway or BadEngine; _Failed if what the request names does not exist.
        """
        failures: dict[str, str] = {}
        for _ in range(_ROUNDS * len(self._nodes.addresses)):
            try:
                return self.ask_once(path, request, kind)
            except _Failed as failed:
                failures["{}:{}".format(*self.address)] = str(failed)
                if failed.code == _NOT_FOUND:
                    raise
                if failed.code in _FINAL:
                    raise BadEngine(f"etcd refuses {path}: {failed}") from None
                self.turn()
        reasons = "; ".join(f"{address}: {why}" for address, why in failures.items())
        raise EngineAway(f"no node of etcd answers ({reasons})")

    def ask_once(self, path: str, request: Mapping[str, Any], kind: type[A]) -> A:
        """Returns the answer of one node. Raises _Failed."""
        body = msgspec.json.encode(request)
        if self._nodes.user and not self._token:
            self._authenticate()
        try:
            return _decode(self._post(path, body), kind)
        except _Failed as failed:
            if failed.code != _UNAUTHENTICATED or not self._nodes.user:
                raise
            self._authenticate()  # the token is too old; a request without rights is not carried out
            return _decode(self._post(path, body), kind)

    def _authenticate(self) -> None:
        self._token = ""
        account = {"name": self._nodes.user, "password": self._nodes.password}
        try:
            answer = self._post("/v3/auth/authenticate", msgspec.json.encode(account), _AUTHENTICATE_S)
        except _Failed as failed:
            raise _Failed(f"the account is refused: {failed}", was_sent=False, code=failed.code) from None
        self._token = _decode(answer, _Token).token

    def _post(self, path: str, body: bytes, limit_s: float = 0.0) -> bytes:
        limit_s = limit_s or self._try_s
        until = time.monotonic() + limit_s
        connection = self._connect()
        connection.sock.settimeout(limit_s)
        try:
            connection.request("POST", path, body, self.headers())
            response = connection.getresponse()
            answer = bytearray()
            while True:
                piece = response.read1(_WATCH_READ)
                if not piece:
                    break
                answer += piece
                if len(answer) > MAX_VIEW:
                    raise _Failed(f"the answer has more than {MAX_VIEW} bytes", was_sent=True)
                if time.monotonic() > until:
                    raise TimeoutError
            response.close()  # `read1` does not: the connection would not take another request
        except _Failed:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise _Failed(f"no answer within {limit_s:g} s", was_sent=True) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _Failed(str(error) or type(error).__name__, was_sent=True) from None
        if response.will_close:
            self.close()
        if response.status != 200:
            raise _refusal(response.status, bytes(answer))
        return bytes(answer)

    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        return headers

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is not None and self._connection.sock is not None:
            return self._connection
        host, port = self.address
        if self._nodes.tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=self._try_s)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=self._try_s, context=self._nodes.tls)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise _Failed(error.strerror or str(error), was_sent=False) from None
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        return connection

    def turn(self) -> None:
        """Goes on with the next node."""
        self.close()
        self._at = (self._at + 1) % len(self._nodes.addresses)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _refusal(status: int, answer: bytes) -> _Failed:
    try:
        problem = msgspec.json.decode(answer, type=prepared(_Problem), strict=False)
    except msgspec.MsgspecError:
        problem = _Problem()
    why = " ".join((problem.message or f"it answers with HTTP status {status}").split())[:300]
    return _Failed(why, was_sent=True, code=problem.code)


# -- the watch ---------------------------------------------------------------------------------------------------


class _Watch:
    """A stream of hints from one node. What it sends is not read, only noticed."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._address: tuple[str, int] | None = None
        self._not_before = 0.0

    def open(self, channel: _Channel, nodes: EtcdNodes, request: bytes, try_s: float) -> bool:
        """Opens the stream at the channel's node, unless it is open. Returns whether it has just been opened."""
        if self._socket is not None and self._address == channel.address:
            return False
        self.close()
        if time.monotonic() < self._not_before:
            return False
        self._not_before = time.monotonic() + _WATCH_AGAIN_S
        host, port = self._address = channel.address
        lines = [f"{name}: {value}" for name, value in channel.headers().items()]
        head = "\r\n".join(
            ["POST /v3/watch HTTP/1.1", f"Host: {host}:{port}", *lines, f"Content-Length: {len(request)}", "", ""]
        )
        try:
            plain = socket.create_connection((host, port), try_s)
            try:
                self._socket = plain if nodes.tls is None else nodes.tls.wrap_socket(plain, server_hostname=host)
            except OSError:
                plain.close()
                raise
            self._socket.sendall(head.encode() + request)
            self._socket.setblocking(False)
        except OSError:
            self.close()
            return False
        return True

    @property
    def descriptor(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    def drain(self) -> None:
        """Drops what has arrived. Closes the stream if the node has closed it."""
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            try:
                while self._socket is not None:
                    if not self._socket.recv(_WATCH_READ):
                        self.close()
            except OSError as error:
                if isinstance(error, BlockingIOError | ssl.SSLWantReadError | ssl.SSLWantWriteError):
                    raise
                self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


# -- sessions ----------------------------------------------------------------------------------------------------


class EtcdSession:
    """A lease at etcd. `consensus_engine.Session` has the contract."""

    def __init__(self, nodes: EtcdNodes, prefix: str, ttl_s: int, clock: Callable[[], float] = boot_time) -> None:
        """Takes a lease of `ttl_s` seconds; 0: none, for reads and an operator's changes.

        Raises EngineAway, or BadEngine if etcd refuses, or grants another time.
        """
        self._nodes = nodes
        self._prefix = prefix.rstrip("/") + "/"
        self._clock = clock
        self._try_s = min(_TRY_S, ttl_s / 8) if ttl_s else 2.0
        self._channel = _Channel(nodes, self._try_s)
        self._renewals = _Channel(nodes, self._try_s)
        self._watch = _Watch()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self._gate = threading.Lock()
        """Guards `_woken`: once it is closed, its number may belong to another file."""
        self._ttl_s = ttl_s
        self._lease = 0
        self._deadline = -1.0
        if ttl_s:
            try:
                self._grant()
            except BaseException:
                self.close()
                raise

    def _grant(self) -> None:
        began = self._clock()
        granted = self._channel.ask("/v3/lease/grant", {"TTL": str(self._ttl_s)}, _Grant)
        self._lease = granted.lease
        if granted.ttl != self._ttl_s:
            self.release()
            raise BadEngine(
                f"etcd granted a lease of {granted.ttl} s instead of {self._ttl_s} s; set failoverTtlMillis to at "
                f"least {granted.ttl * 1000}, or give etcd a shorter --election-timeout"
            )
        self._deadline = began + granted.ttl

    @property
    def ttl_s(self) -> float:
        return float(self._ttl_s)

    @property
    def deadline(self) -> float:
        return self._deadline

    def renew(self) -> bool:
        began = self._clock()
        try:
            left = self._renewals.ask("/v3/lease/keepalive", {"ID": str(self._lease)}, _KeepAlive).result.ttl
        except _Failed:
            return False
        except BadEngine as error:
            raise EngineAway(str(error)) from None
        if left <= 0:
            return False
        self._deadline = began + min(left, self._ttl_s)
        return True

    def view(self) -> View:
        answer = self._channel.ask("/v3/kv/range", self._range(), _Range)
        return self._view(answer.header, answer)

    def commit(self, transaction: Transaction) -> Outcome:
        request = self._request(transaction)
        while True:
            try:
                answer = self._channel.ask_once("/v3/kv/txn", request, _Txn)
                break
            except _Failed as failed:
                if failed.code == _NOT_FOUND:  # the lease has ended, so nothing was changed
                    return NotExpected(self.view())
                if failed.code in _FINAL:
                    raise BadEngine(f"etcd refuses the transaction `{transaction.what}`: {failed}") from None
                self._channel.turn()
                if failed.was_sent or self._channel.address == self._nodes.addresses[0]:
                    return Unknown(str(failed))
        ranges = [each.response_range for each in answer.responses if each.response_range is not None]
        if len(ranges) != 1:
            return Unknown("the answer has no range")
        view = self._view(answer.header, ranges[0])
        return Committed(view) if answer.succeeded else NotExpected(view)

    def history(self, limit: int) -> list[Mastership]:
        begin = self._prefix + HISTORY
        request = {
            "key": _text(begin.encode()),
            "range_end": _text((begin[:-1] + chr(ord("/") + 1)).encode()),
            "sort_order": "DESCEND",
            "sort_target": "KEY",
            "limit": str(limit),
        }
        answer = self._channel.ask("/v3/kv/range", request, _Range)
        return [decode_history(each.key.decode("utf-8", "replace"), each.value) for each in answer.kvs]

    def wait(self, seconds: float) -> None:
        create = msgspec.json.encode({"create_request": self._range()})
        if self._watch.open(self._channel, self._nodes, create, self._try_s):
            return  # something may have changed before the stream was open
        ready = select.poll()
        ready.register(self._woken, select.POLLIN)
        if self._watch.descriptor is not None:
            ready.register(self._watch.descriptor, select.POLLIN)
        for descriptor, _ in ready.poll(max(seconds, 0.0) * 1000):
            if descriptor == self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._woken)
            else:
                self._watch.drain()

    def wake(self) -> None:
        with self._gate:
            if not self._is_closed:
                os.eventfd_write(self._woken, 1)

    def release(self) -> None:
        if self._lease:
            with contextlib.suppress(EngineAway, BadEngine, _Failed):
                self._channel.ask("/v3/lease/revoke", {"ID": str(self._lease)}, _Range)

    def close(self) -> None:
        with self._gate:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self._woken)
        self._watch.close()
        self._channel.close()
        self._renewals.close()

    # -- requests ---------------------------------------------------------------------------------------------

    def _key(self, key: str) -> str:
        return _text((self._prefix + key).encode())

    def _range(self) -> dict[str, str]:
        """All keys but the history: they lie between `leader` and `state`."""
        return {"key": self._key(LEADER), "range_end": self._key(STATE + "\0")}

    def _request(self, transaction: Transaction) -> dict[str, Any]:
        compare: list[dict[str, str]] = [
            {"key": self._key(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}
            for key, version in transaction.expected.items()
        ]
        if transaction.mine:
            lease = {"target": "LEASE", "result": "EQUAL", "lease": str(self._lease)}
            compare.append({"key": self._key(LEADER), **lease})
        steps: list[dict[str, Any]] = [
            {"request_delete_range": {"key": self._key(key)}} for key in sorted(transaction.deletes)
        ]
        for key, value in transaction.puts.items():
            put = {"key": self._key(key), "value": _text(value)}
            if key in transaction.leased:
                put["lease"] = str(self._lease)
            steps.append({"request_put": put})
        read = {"request_range": self._range()}
        return {"compare": compare, "success": [*steps, read], "failure": [read]}

    def _view(self, header: _Header | None, answer: _Range) -> View:
        prefix = self._prefix.encode()
        entries = {
            each.key.removeprefix(prefix).decode("utf-8", "replace"): KeyValue(
                each.value, each.mod_revision, self._lease != 0 and each.lease == self._lease
            )
            for each in answer.kvs
            if each.key.startswith(prefix)
        }
        return View.of(0 if header is None else header.revision, entries)
