"""ZooKeeper through kazoo: versions, cut connections, accounts, TLS, nodes that are lost, and a process that slept."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.loopback import SOON_S, free_port, make_authority, make_certificate
from support.zookeeper import ZookeeperNode, running_zookeeper

from penstock.broker.failover.consensus_engine import (
    LEADER,
    STATE,
    BadEngine,
    ChangeKind,
    Committed,
    EngineAway,
    Leader,
    Member,
    NotExpected,
    State,
    Transaction,
    Unknown,
    member_key,
)
from penstock.remoting.tls import client_tls

pytest.importorskip("kazoo", reason="kazoo is not installed; pip install 'penstock[zookeeper]'")

from kazoo.client import KazooClient

from penstock.broker.failover.zookeeper import ZookeeperNodes, ZookeeperSession

pytestmark = pytest.mark.zookeeper

_STATE = State(epoch=1, master=1, sync=(1,), ids={"a": 1}, next_id=2)
_LEADER = Leader(id=1, epoch=1, incarnation="a").to_bytes()
_FOUND = Transaction(
    what=ChangeKind.BOOTSTRAP,
    expected={STATE: 0},
    puts={STATE: _STATE.to_bytes(), LEADER: _LEADER},
    leased=frozenset({LEADER}),
)
_ELECT = Transaction(what=ChangeKind.ELECT, puts={LEADER: _LEADER}, leased=frozenset({LEADER}))
_RESIGN = Transaction(what=ChangeKind.RESIGN, deletes=frozenset({LEADER}))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperNode]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as (started,):
        yield started


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"/penstock/{tmp_path.name}"


@contextmanager
def _session(
    prefix: str, *addresses: tuple[str, int], ttl_s: int = 2, kind: type[ZookeeperSession] | None = None, **options: Any
) -> Iterator[ZookeeperSession]:
    session = (kind or ZookeeperSession)(ZookeeperNodes(addresses=addresses, **options), prefix, ttl_s)
    try:
        yield session
    finally:
        session.release()
        session.close()


class Between:
    """A proxy before a node. `to_node` and `to_client` are what becomes of bytes; None: the connection is cut there."""

    def __init__(self, node: ZookeeperNode) -> None:
        self._node = node
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", int(self._listener.getsockname()[1]))
        self.to_node: Callable[[bytes], bytes | None] = lambda data: data
        self.to_client: Callable[[bytes], bytes | None] = lambda data: data
        self.connections = 0
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Between:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.close()
        self._thread.join()
        self._stopped.close()
        self._listener.close()

    def _run(self) -> None:
        pairs: dict[socket.socket, tuple[socket.socket, bool]] = {}
        while True:
            ready, _, _ = select.select([self._listener, self._stopped, *pairs], [], [])
            if self._stopped in ready:
                break
            if self._listener in ready:
                client, _ = self._listener.accept()
                self.connections += 1
                there = socket.create_connection(self._node.address)
                pairs |= {client: (there, True), there: (client, False)}
            for each in [each for each in ready if each in pairs]:
                other, is_client = pairs.get(each, (each, True))
                data = b""
                with contextlib.suppress(OSError):
                    data = each.recv(65536)
                passed = (self.to_node if is_client else self.to_client)(data) if data else None
                if passed is not None:
                    other.sendall(passed)
                    continue
                for gone in (each, other):
                    pairs.pop(gone, None)
                    gone.close()
        for each in pairs:
            each.close()


# -- versions --------------------------------------------------------------------------------------------------------


class Late(ZookeeperSession):
    """Something happens between its read and its transaction, once."""

    meanwhile: Callable[[], object] | None = None

    def _carry_out(self, transaction: Transaction, found: Any) -> Any:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return super()._carry_out(transaction, found)


def test_a_node_that_is_made_again_is_not_taken_for_the_old_one(node: ZookeeperNode, prefix: str) -> None:
    with _session(prefix, node.address) as other, _session(prefix, node.address, kind=Late) as late:
        assert isinstance(other.commit(_FOUND), Committed)
        version = late.view().leader_version
        assert isinstance(late, Late)
        late.meanwhile = lambda: (other.commit(_RESIGN), other.commit(_ELECT))
        take_over = Transaction(
            what=ChangeKind.TAKE_OVER, expected={LEADER: version}, puts={LEADER: _LEADER}, leased=frozenset({LEADER})
        )
        assert isinstance(late.commit(take_over), NotExpected)
        assert other.view().leader_is_mine


def test_a_key_that_vanishes_with_its_session_meanwhile_is_not_the_expected_one(
    node: ZookeeperNode, prefix: str
) -> None:
    with _session(prefix, node.address) as other, _session(prefix, node.address, kind=Late) as late:
        assert isinstance(other.commit(_FOUND), Committed)
        view = late.view()
        assert isinstance(late, Late)
        late.meanwhile = other.release
        pause = Transaction(
            what=ChangeKind.PAUSE, expected={LEADER: view.leader_version}, puts={STATE: _STATE.to_bytes()}
        )
        assert isinstance(late.commit(pause), NotExpected)
        assert late.view().state_version == view.state_version


def test_what_expects_nothing_is_carried_out_whoever_is_faster(node: ZookeeperNode, prefix: str) -> None:
    key = member_key(1)
    publish = Transaction(
        what=ChangeKind.PUBLISH,
        puts={key: Member(replica="a", incarnation="a.1").to_bytes()},
        leased=frozenset({key}),
    )
    with _session(prefix, node.address) as other, _session(prefix, node.address, kind=Late) as late:
        assert isinstance(other.commit(publish), Committed)
        assert isinstance(late, Late)
        late.meanwhile = other.release
        assert isinstance(late.commit(publish), Committed)
        assert late.view().own_members == {1}


# -- connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_transaction_whose_answer_is_lost_is_unknown(node: ZookeeperNode, prefix: str, is_carried_out: bool) -> None:
    with _session(prefix, node.address) as direct, Between(node) as between:
        direct.commit(_RESIGN)  # makes the nodes
        with _session(prefix, between.address, kind=Late) as late:
            assert isinstance(late, Late)

            def lose_it() -> None:
                if is_carried_out:
                    between.to_client = lambda data: None
                else:
                    between.to_node = lambda data: None

            late.meanwhile = lose_it
            assert isinstance(late.commit(_FOUND), Unknown)
            assert (direct.view().state == _STATE) is is_carried_out


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_the_thread_of_kazoo_fails_the_lease_is_lost(node: ZookeeperNode, prefix: str) -> None:
    with Between(node) as between, _session(prefix, between.address) as session:
        assert isinstance(session.commit(_FOUND), Committed)
        between.to_client = lambda data: b"\xff" * 16  # a length below zero: no ZooKeeper sends that
        until = time.monotonic() + SOON_S
        while True:
            with contextlib.suppress(EngineAway):
                if not session.renew():
                    break
            assert time.monotonic() < until
        with pytest.raises(EngineAway):
            session.view()


@pytest.mark.parametrize(
    ("answer", "why"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "more than"), (b"\x7f\xff\xff\xff", "more than"), (b"", "no connection")],
)
def test_an_answer_that_is_not_of_zookeeper_is_refused(answer: bytes, why: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                connection.sendall(answer)
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(EngineAway, match=f"no node of ZooKeeper answers .*{why}"):
            ZookeeperSession(ZookeeperNodes(addresses=[("127.0.0.1", listener.getsockname()[1])]), "/p", 2)
    finally:
        is_over.set()
        thread.join()
        listener.close()


def test_where_no_node_listens_the_engine_is_away() -> None:
    with pytest.raises(EngineAway, match=r"no node of ZooKeeper answers .*refused"):
        ZookeeperSession(ZookeeperNodes(addresses=[("127.0.0.1", free_port())]), "/p", 2)


def test_a_renewal_goes_to_the_next_node_when_one_is_silent(node: ZookeeperNode, prefix: str) -> None:
    with Between(node) as one, Between(node) as two, _session(prefix, one.address, two.address, ttl_s=6) as session:
        used = one if one.connections else two
        used.to_node = lambda data: b""  # it takes everything, and passes on nothing
        assert session.renew()


def test_three_nodes_go_on_without_one_of_them(tmp_path: Path, prefix: str) -> None:
    with running_zookeeper(tmp_path, 3) as nodes:
        addresses = [each.address for each in nodes]
        with _session(prefix, *addresses, ttl_s=6) as session:
            assert isinstance(session.commit(_FOUND), Committed)
            leader = next(each for each in nodes if each.mode() == "leader")
            leader.signal(signal.SIGSTOP)
            assert _renew_soon(session), "the session moved to another node"
            assert session.view().leader_is_mine
            other = next(each for each in nodes if each is not leader)
            other.signal(signal.SIGSTOP)
            with pytest.raises(EngineAway):
                session.renew()
            for each in (leader, other):
                each.signal(signal.SIGCONT)


def _renew_soon(session: ZookeeperSession) -> bool:
    until = time.monotonic() + SOON_S
    while time.monotonic() < until:
        with contextlib.suppress(EngineAway):
            return session.renew()
    return False


# -- the lease -------------------------------------------------------------------------------------------------------


def test_a_session_of_another_length_than_asked_is_refused(node: ZookeeperNode) -> None:
    why = "granted a session of 10000 ms instead of 60000 ms; set failoverTtlMillis .* tickTime, minSessionTimeout"
    with pytest.raises(BadEngine, match=why):
        ZookeeperSession(ZookeeperNodes(addresses=[node.address]), "/p", 60)


def test_the_deadline_counts_from_the_renewal_before_the_last(node: ZookeeperNode, prefix: str) -> None:
    clock = [0.0]
    session = ZookeeperSession(ZookeeperNodes(addresses=[node.address]), prefix, 6, lambda: clock[0])
    try:
        found = []
        for clock[0] in (1.5, 3.0, 3.1, 4.5):
            assert session.renew()
            found.append(session.deadline)
        assert found == [6.0, 7.5, 7.5, 9.0]
    finally:
        session.release()
        session.close()


_SLEEPER = """
import sys
from penstock.broker.failover.consensus_engine import boot_time
from penstock.broker.failover.lease import LeaseThread, MasterHealth
from penstock.broker.failover.zookeeper import ZookeeperNodes, ZookeeperSession
from broker.failover.test_zookeeper import _FOUND
session = ZookeeperSession(ZookeeperNodes(addresses=[("127.0.0.1", int(sys.argv[1]))]), sys.argv[2], 2)
session.commit(_FOUND)
lease = LeaseThread(session, MasterHealth, lambda why: print(why, flush=True))
lease.start()
print("leads", flush=True)
sys.stdin.readline()
print("over" if boot_time() >= session.deadline else "goes on", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_slept_knows_by_its_own_clock_that_its_lease_is_over(node: ZookeeperNode, prefix: str) -> None:
    command = [sys.executable, "-c", _SLEEPER, str(node.address[1]), prefix]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    sleeper = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1
    )
    assert sleeper.stdin is not None
    assert sleeper.stdout is not None
    try:
        with _session(prefix, node.address, ttl_s=0) as other:
            assert sleeper.stdout.readline() == "leads\n"
            until = time.monotonic() + SOON_S
            assert other.view().leader is not None
            sleeper.send_signal(signal.SIGSTOP)
            while other.view().leader is not None:
                assert time.monotonic() < until
                time.sleep(0.05)
            sleeper.stdin.write("\n")
            sleeper.send_signal(signal.SIGCONT)
            said = {sleeper.stdout.readline(), sleeper.stdout.readline()}
        assert said == {"over\n", "the lease has ended: it was not renewed in time, or it was revoked\n"}
    finally:
        sleeper.kill()
        sleeper.communicate()


# -- rights ----------------------------------------------------------------------------------------------------------


def test_only_the_account_may_read_and_write(node: ZookeeperNode, prefix: str) -> None:
    inside = f"{prefix}/c/b"
    with _session(inside, node.address, user="broker", password="s3 cret") as allowed:
        assert isinstance(allowed.commit(_FOUND), Committed)
        assert allowed.view().state == _STATE
        assert allowed.renew()
        for account in ({}, {"user": "broker", "password": "wrong"}):
            with _session(inside, node.address, **account) as refused:
                with pytest.raises(BadEngine, match="check dcsAccountFile"):
                    refused.view()
                with pytest.raises(BadEngine, match="check dcsAccountFile"):
                    refused.commit(_FOUND)
        plain = KazooClient("{}:{}".format(*node.address))
        plain.start()
        plain.add_auth("digest", "broker:s3 cret")
        try:
            for path in (prefix, inside, f"{inside}/state", f"{inside}/leader", f"{inside}/members"):
                schemes = {each.id.scheme for each in plain.get_acls(path)[0]}
                assert schemes == {"digest"}, path
        finally:
            plain.stop()
            plain.close()


def test_tls(tmp_path: Path, prefix: str) -> None:
    authority = make_authority(tmp_path, "authority")
    pair = make_certificate(tmp_path, "zookeeper", authority)
    both = tmp_path / "both.pem"
    both.write_text(pair.key.read_text() + pair.certificate.read_text())
    settings = {
        "secureClientPort": free_port(),
        "ssl.keyStore.location": both,
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": authority.certificate,
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "none",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
    }
    trusting = client_tls({"tls.enable": "true", "tls.client.trustCertPath": str(authority.certificate)})
    with running_zookeeper(tmp_path, settings=settings, waits=False) as (node,):
        session, until = None, time.monotonic() + SOON_S
        while session is None:
            with contextlib.suppress(EngineAway):
                session = ZookeeperSession(ZookeeperNodes(addresses=[node.address], tls=trusting), prefix, 2)
            assert time.monotonic() < until, (tmp_path / "z1.log").read_text()
        try:
            assert isinstance(session.commit(_FOUND), Committed)
            assert session.renew()
        finally:
            session.release()
            session.close()
        with pytest.raises(EngineAway, match="certificate"):
            ZookeeperSession(ZookeeperNodes(addresses=[node.address], tls=client_tls({"tls.enable": "true"})), "/p", 2)
