"""What replicas and the engine hold at the end of a run, read by their formats, without the code under test.

The audit of a store is `penstock.store.audit`, which has tests of its own.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from penstock.format.record import decode_record
from penstock.store import Settings
from penstock.store.audit import audit
from support.failover.history import Leader, Replica, State, Stored, Tail
from support.failover.load import TOPIC, queue_name, token_of

MESSAGE, FILLER = 0xDAA320A7, 0xCBD43194
"""Magic codes of records."""
_HEAD = struct.Struct(">iI")
_TAIL = 256


# -- logs ------------------------------------------------------------------------------------------------------------


def log_end(folder: Path) -> tuple[int, bytes]:
    """Returns where a log ends, to the last byte that is not zero, and its last bytes; also while it is written."""
    for path in sorted((folder / "commitlog").glob("[0-9]*"), reverse=True):
        try:
            data = path.read_bytes().rstrip(b"\0")
        except FileNotFoundError:
            continue
        if data:
            return int(path.name) + len(data), data[-_TAIL:]
    return 0, b""


def queue_ends(folder: Path) -> dict[str, int]:
    """Returns how much each file of the topic's queues holds, to the last byte that is not zero."""
    queues = folder / "consumequeue" / TOPIC
    return {str(each.relative_to(queues)): len(each.read_bytes().rstrip(b"\0")) for each in queues.glob("*/[0-9]*")}


def read_log(folder: Path) -> Iterator[Stored]:
    """Yields the records of the files in a folder, each named by its first offset, until something else begins."""
    for path in sorted(folder.glob("[0-9]*")):
        yield from _records(path.read_bytes(), int(path.name))


def _records(data: bytes, base: int) -> Iterator[Stored]:
    at = 0
    while at + _HEAD.size <= len(data):
        size, magic = _HEAD.unpack_from(data, at)
        if magic not in (MESSAGE, FILLER) or not _HEAD.size <= size <= len(data) - at:
            return
        piece = data[at : at + size]
        digest = hashlib.blake2b(piece if magic == MESSAGE else piece[: _HEAD.size], digest_size=8).hexdigest()
        if magic == FILLER:
            yield Stored(base + at, size, digest)
        else:
            record = decode_record(piece)
            token = token_of(record.body) if record.topic == TOPIC else ""
            where = queue_name(record.topic, record.queue_id)
            yield Stored(base + at, size, digest, where, record.queue_offset, token, record.store_host)
        at += size


def read_replica(name: str, address: str, folder: Path, settings: Settings | None = None) -> Replica:
    """Returns what a replica has that is not running."""
    records = tuple(read_log(folder / "commitlog"))
    end = records[-1].physical + records[-1].size if records else 0
    files = sorted((folder / "commitlog").glob("[0-9]*"))
    found = audit(folder, settings or Settings.dev())
    return Replica(
        name,
        address,
        int(files[0].name) if files else 0,
        end,
        records,
        tuple(read_epochs(folder / "epochFileCheckpoint")),
        tuple(read_tails(folder / "penstock" / "quarantine")),
        tuple(f"{each.kind} {each.path}: {each.what}" for each in found.errors),
    )


def read_epochs(path: Path) -> Iterator[tuple[int, int]]:
    """Yields the entries of RocketMQ 5's epoch file; none if it does not exist."""
    lines = path.read_text().split("\n")[2:] if path.exists() else []
    for line in lines:
        epoch, dash, start = line.partition("-")
        if dash:
            yield int(epoch), int(start)


def read_tails(quarantine: Path) -> Iterator[Tail]:
    """Yields what a replica has cut off and kept, and stores that were moved aside."""
    for manifest in sorted(quarantine.glob("*/*/manifest.json")):
        folder, said = manifest.parent, json.loads(manifest.read_text())
        is_whole = folder.name.startswith("store")
        records = read_log(folder / "commitlog" if is_whole else folder)
        tokens = tuple(record.token for record in records if record.token)
        yield Tail(int(said["offset"]), int(said["end"]), tokens, is_whole)


# -- etcd ------------------------------------------------------------------------------------------------------------


class EngineAway(Exception):
    """No node of the engine answered."""


class Engine(Protocol):
    """The keys of one set of brokers."""

    def read(self) -> dict[str, Any]:
        """Returns the values of all keys, by the last parts of their names: `state`, `leader`, `members/1`, ..."""

    def master_address(self) -> str:
        """Returns the address of the master; empty if there is none."""

    def order_switchover(self, name: str) -> bool:
        """Puts an operator's order, unless there is one; returns whether it did."""

    def past(self) -> tuple[tuple[State, ...], tuple[Leader, ...]]:
        """Returns every value that the keys `state` and `leader` ever had, oldest first."""

    def close(self) -> None:
        """Ends its connections."""


class EtcdEngine:
    """In etcd, through its HTTP gateway."""

    def __init__(self, addresses: list[tuple[str, int]], prefix: str = "/penstock") -> None:
        self._addresses = addresses
        self._range = {"key": _text(prefix), "range_end": _text(prefix[:-1] + chr(ord(prefix[-1]) + 1))}

    def read(self) -> dict[str, Any]:
        return {_short(key): value for key, value in self._read().items()}

    def _read(self) -> dict[str, Any]:
        pairs = self._ask("/v3/kv/range", self._range).get("kvs", [])
        return {base64.b64decode(pair["key"]).decode(): _value(pair) for pair in pairs}

    def master_address(self) -> str:
        return str(self.read().get("leader", {}).get("address", ""))

    def order_switchover(self, name: str) -> bool:
        state = next((key for key in self._read() if _short(key) == "state"), None)
        if state is None:
            return False
        key = _text(state.removesuffix("state") + "request")
        order = _text(_order(name))
        done = self._ask(
            "/v3/kv/txn",
            {
                "compare": [{"key": key, "target": "VERSION", "result": "EQUAL", "version": "0"}],
                "success": [{"request_put": {"key": key, "value": order}}],
            },
        )
        return bool(done.get("succeeded"))

    def past(self) -> tuple[tuple[State, ...], tuple[Leader, ...]]:
        return _past(self._events())

    def close(self) -> None:
        return

    def _events(self) -> Iterator[tuple[int, str, Any]]:
        """Yields revision, key and value of each put, from the first revision to the present one."""
        pairs = self._ask("/v3/kv/range", self._range).get("kvs", [])
        newest = max((int(pair["mod_revision"]) for pair in pairs), default=0)
        connection = http.client.HTTPConnection(*self._addresses[0], timeout=20)
        try:
            order = {"create_request": {**self._range, "start_revision": "1"}}
            connection.request("POST", "/v3/watch", json.dumps(order))
            answer, revision = connection.getresponse(), 0
            while revision < newest:
                for event in json.loads(answer.readline())["result"].get("events", []):
                    revision = int(event["kv"]["mod_revision"])
                    if event.get("type", "PUT") == "PUT":
                        yield revision, _short(base64.b64decode(event["kv"]["key"]).decode()), _value(event["kv"])
        finally:
            connection.close()

    def _ask(self, path: str, order: dict[str, Any]) -> dict[str, Any]:
        for address in self._addresses:
            connection = http.client.HTTPConnection(*address, timeout=1.0)
            try:
                connection.request("POST", path, json.dumps(order))
                answer = connection.getresponse()
                if answer.status == 200:
                    found: dict[str, Any] = json.loads(answer.read())
                    return found
            except (OSError, http.client.HTTPException):
                continue
            finally:
                connection.close()
        raise EngineAway(path)


class ZookeeperEngine:
    """In ZooKeeper, through kazoo; the past is read from the log of transactions of a node that runs alone."""

    def __init__(self, address: tuple[str, int], data: Path, prefix: str) -> None:
        from kazoo.client import KazooClient

        self._client = KazooClient("{}:{}".format(*address))
        self._client.start()
        self._data = data
        self._prefix = prefix

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in ("state", "leader", "request", "members", "history"):
            names = [f"{key}/{name}" for name in self._children(key)] if key in ("members", "history") else [key]
            for name in names:
                if (value := self._ask(self._client.get_async(f"{self._prefix}/{name}"))) is not None:
                    found[name] = json.loads(value[0])
        return found

    def _children(self, key: str) -> list[str]:
        return self._ask(self._client.get_children_async(f"{self._prefix}/{key}")) or []

    def _ask(self, request: Any) -> Any:
        from kazoo.exceptions import KazooException, NoNodeError
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            return request.get(timeout=5)
        except NoNodeError:
            return None
        except (KazooException, KazooTimeoutError) as error:
            raise EngineAway(repr(error)) from None

    def master_address(self) -> str:
        value = self._ask(self._client.get_async(f"{self._prefix}/leader"))
        return "" if value is None else str(json.loads(value[0])["address"])

    def order_switchover(self, name: str) -> bool:
        steps = self._client.transaction()
        steps.set_data(self._prefix, b"")  # every change has a revision
        steps.create(f"{self._prefix}/request", _order(name).encode())
        return not any(isinstance(each, Exception) for each in self._ask(steps.commit_async()))

    def past(self) -> tuple[tuple[State, ...], tuple[Leader, ...]]:
        changes = read_transactions(self._data)
        begin = f"{self._prefix}/"
        return _past((at, path.removeprefix(begin), json.loads(data)) for at, path, data in changes if data)

    def close(self) -> None:
        self._client.stop()
        self._client.close()


_LOG_HEAD, _ENTRY = 16, struct.Struct(">qi")
_TRANSACTION = struct.Struct(">qiqqi")
_CREATE, _SET_DATA, _MULTI, _ERROR, _END = 1, 5, 14, -1, b"B"


def read_transactions(data: Path) -> Iterator[tuple[int, str, bytes]]:
    """Yields number, path and value of each node that a ZooKeeper server has written, from its log files.

    A file is a head, then entries: checksum 8, length 4, transaction, `B`. A transaction begins with session 8,
    its number there 4, number 8, time 8, type 4. Zeros follow the last entry.
    """
    for path in sorted(data.glob("version-2/log.*"), key=lambda path: int(path.suffix[1:], 16)):
        raw, at = path.read_bytes(), _LOG_HEAD
        while at + _ENTRY.size <= len(raw):
            _, length = _ENTRY.unpack_from(raw, at)
            at += _ENTRY.size
            if not length or raw[at + length : at + length + 1] != _END:
                break
            _, _, number, _, kind = _TRANSACTION.unpack_from(raw, at)
            for name, value in _writes(raw[at + _TRANSACTION.size : at + length], kind):
                yield number, name, value
            at += length + 1


def _writes(body: bytes, kind: int) -> Iterator[tuple[str, bytes]]:
    if kind == _MULTI:
        (count,), at = struct.unpack_from(">i", body), 4
        parts = []
        for _ in range(count):
            (inner,) = struct.unpack_from(">i", body, at)
            part, at = _buffer(body, at + 4)
            parts.append((part, inner))
        if all(inner != _ERROR for _, inner in parts):
            for part, inner in parts:
                yield from _writes(part, inner)
    elif kind in (_CREATE, _SET_DATA):
        path, at = _buffer(body, 0)
        yield path.decode(), _buffer(body, at)[0]


def _buffer(body: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">i", body, at)
    end = at + 4 + max(length, 0)
    return body[at + 4 : end], end


def _past(events: Iterator[tuple[int, str, Any]]) -> tuple[tuple[State, ...], tuple[Leader, ...]]:
    states: list[State] = []
    leaders: list[Leader] = []
    for revision, key, value in events:
        if key == "state":
            forced = value.get("forced", 0) == value["epoch"]
            states.append(State(revision, value["epoch"], value["master"], tuple(value["sync"]), forced))
        elif key == "leader":
            leaders.append(Leader(revision, value["epoch"], value["id"], value["address"]))
    return tuple(states), tuple(leaders)


def _order(name: str) -> str:
    return json.dumps({"v": 1, "id": name, "kind": "switchover", "to": 0, "since": 0})


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _value(pair: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(pair.get("value", "")) or b"{}")


def _short(key: str) -> str:
    parts = key.split("/")
    return "/".join(parts[-2:]) if parts[-2] in ("members", "history") else parts[-1]
