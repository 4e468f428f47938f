"""etcd through its gateway: several addresses, accounts, TLS, and answers that no etcd gives."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.etcd import running_etcd
from support.loopback import SOON_S, free_port, make_authority, make_certificate

from penstock.broker.failover.consensus_engine import (
    LEADER,
    STATE,
    BadEngine,
    ChangeKind,
    Committed,
    EngineAway,
    Leader,
    State,
    Transaction,
    Unknown,
)
from penstock.broker.failover.etcd import EtcdNodes, EtcdSession
from penstock.remoting.tls import client_tls

_STATE = State(epoch=1, master=1, sync=(1,), ids={"a": 1}, next_id=2)
_FOUND = Transaction(
    what=ChangeKind.BOOTSTRAP,
    expected={STATE: 0},
    puts={STATE: _STATE.to_bytes(), LEADER: Leader(id=1, epoch=1, incarnation="a").to_bytes()},
    leased=frozenset({LEADER}),
)
Answer = Callable[[str, dict[str, Any]], tuple[int, bytes]]


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, int]]:
    """A server that answers each POST as `answer` says."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, data = answer(self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the session does not read all of a long answer
                self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield ("127.0.0.1", server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _granting(others: Answer) -> Answer:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if path == "/v3/lease/grant":
            return 200, json.dumps({"ID": "7", "TTL": body["TTL"]}).encode()
        return others(path, body)

    return answer


@contextmanager
def _session(*addresses: tuple[str, int], ttl_s: int = 2, **options: Any) -> Iterator[EtcdSession]:
    session = EtcdSession(EtcdNodes(addresses=addresses, **options), "/penstock/c/b", ttl_s)
    try:
        yield session
    finally:
        session.close()


def test_a_lease_of_another_length_than_asked_is_refused() -> None:
    with (
        answering(lambda path, body: (200, b'{"ID": "7", "TTL": "9"}')) as address,
        pytest.raises(BadEngine, match="granted a lease of 9 s instead of 2 s; set failoverTtlMillis"),
    ):
        EtcdSession(EtcdNodes(addresses=[address]), "/p", 2)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"x" * (5 << 20), "more than"),
        (b"<html>", "not etcd's"),
        (b'{"kvs": [{"key": 5}]}', "not etcd's"),
        (b'{"kvs": 3}', "not etcd's"),
        (b"", "not etcd's"),
    ],
)
def test_an_answer_that_is_not_of_etcd_is_refused(body: bytes, why: str) -> None:
    with answering(_granting(lambda path, request: (200, body))) as address, _session(address) as session:
        with pytest.raises(EngineAway, match=why):
            session.view()
        assert isinstance(session.commit(_FOUND), Unknown)


@pytest.mark.parametrize(
    "value",
    [b"{", b"[]", b'{"v": 2}', b'{"epoch": 1, "master": 3, "sync": [1], "ids": {"a": 1}, "nextId": 2}', b"x" * 70000],
)
def test_a_state_that_no_broker_writes_is_refused(value: bytes) -> None:
    key = base64.b64encode(b"/penstock/c/b/state").decode()
    kv = {"key": key, "value": base64.b64encode(value).decode(), "mod_revision": "5"}
    body = json.dumps({"header": {"revision": "9"}, "kvs": [kv]}).encode()
    with (
        answering(_granting(lambda path, request: (200, body))) as address,
        _session(address) as session,
        pytest.raises(BadEngine, match="the key state"),
    ):
        session.view()


def test_a_node_that_is_no_primary_lessor_leaves_the_request_to_the_next() -> None:
    def refuse(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return 500, b'{"error": "not a primary lessor", "code": 2, "message": "not a primary lessor"}'

    def serve(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return 200, b'{"result": {"ID": "7", "TTL": "2"}}'

    with (
        answering(refuse) as first,
        answering(_granting(serve)) as second,
        _session(first, second) as session,
    ):
        assert session.renew()


def test_rights_that_are_missing_are_said() -> None:
    def deny(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return 403, b'{"code": 7, "message": "etcdserver: permission denied"}'

    with answering(_granting(deny)) as address, _session(address) as session:
        with pytest.raises(BadEngine, match="permission denied"):
            session.view()
        with pytest.raises(BadEngine, match="permission denied"):
            session.commit(_FOUND)


def test_a_transaction_that_was_sent_and_not_answered_is_unknown() -> None:
    silent = threading.Event()

    def hang(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        silent.wait(5)
        return 200, b"{}"

    with answering(_granting(hang)) as address, _session(address) as session:
        assert isinstance(session.commit(_FOUND), Unknown)
        silent.set()


def test_where_no_node_listens_the_engine_is_away() -> None:
    with pytest.raises(EngineAway, match="no node of etcd answers"):
        EtcdSession(EtcdNodes(addresses=[("127.0.0.1", free_port())]), "/p", 2)


@pytest.mark.etcd
def test_three_nodes_go_on_without_one_of_them(tmp_path: Path) -> None:
    with running_etcd(tmp_path, 3) as nodes, _session(*(each.address for each in nodes)) as session:
        assert isinstance(session.commit(_FOUND), Committed)
        nodes[0].end()
        assert session.view().state == _STATE
        assert session.renew()
        nodes[1].signal(signal.SIGSTOP)
        time.sleep(0.5)  # so that no answer is under way: this asserts that there is none, however late
        with pytest.raises(EngineAway):
            session.view()
        nodes[1].signal(signal.SIGCONT)


@pytest.mark.etcd
def test_a_user_with_a_password_and_tls(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    pair = make_certificate(tmp_path, "etcd", authority)
    options = ("--cert-file", str(pair.certificate), "--key-file", str(pair.key))
    trusting = client_tls({"tls.enable": "true", "tls.client.trustCertPath": str(authority.certificate)})
    with running_etcd(tmp_path, 1, *(f"{options[at]}={options[at + 1]}" for at in (0, 2)), waits=False) as (node,):
        root = EtcdNodes(addresses=[node.address], tls=trusting)
        session = _open_soon(root)
        for path, body in (
            ("user/add", {"name": "root", "password": "r"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("role/add", {"name": "broker"}),
            ("role/grant", {"name": "broker", "perm": {"permType": 2, **_prefix("/penstock/")}}),
            ("user/add", {"name": "broker", "password": "b"}),
            ("user/grant", {"user": "broker", "role": "broker"}),
            ("enable", {}),
        ):
            session._channel.ask_once(f"/v3/auth/{path}", body, dict)
        session.close()
        with _session(node.address, tls=trusting, user="broker", password="b") as allowed:
            assert isinstance(allowed.commit(_FOUND), Committed)
            assert allowed.view().state == _STATE
            assert allowed.renew()
        with pytest.raises((BadEngine, EngineAway), match="account is refused"):
            EtcdSession(EtcdNodes(addresses=[node.address], tls=trusting, user="broker", password="x"), "/penstock", 2)
        with pytest.raises(EngineAway, match="certificate"):
            EtcdSession(EtcdNodes(addresses=[node.address], tls=client_tls({"tls.enable": "true"})), "/penstock", 2)


def _prefix(text: str) -> dict[str, str]:
    end = text[:-1] + chr(ord(text[-1]) + 1)
    return {"key": base64.b64encode(text.encode()).decode(), "range_end": base64.b64encode(end.encode()).decode()}


def _open_soon(nodes: EtcdNodes) -> EtcdSession:
    """Returns a session without a lease, once etcd answers."""
    session = EtcdSession(nodes, "/penstock", 0)
    until = time.monotonic() + SOON_S
    while True:
        try:
            session.view()
        except EngineAway:
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            return session
