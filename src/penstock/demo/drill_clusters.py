"""The clusters of a drill: three brokers with a name server and etcd that it starts itself, or one that exists.

A `MadeCluster` owns its processes: they listen on the loopback interface at free ports, have their files in one folder,
and are killed when it is closed, whatever happened to them. Of an etcd that it did not start it uses one prefix, which
it removes at the end. An `ExistingCluster` is only asked, and only for switchovers.

Not thread-safe: a drill uses its cluster from one thread.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from penstock.broker.failover import operator_orders
from penstock.broker.failover.consensus_engine import (
    LEADER,
    REQUEST,
    STATE,
    BadEngine,
    ChangeKind,
    Committed,
    EngineAway,
    Leader,
    Session,
    Transaction,
    View,
    history_key,
    member_key,
)
from penstock.broker.failover.failover_settings import engine_of
from penstock.broker.settings import BrokerSettings
from penstock.client.config import ClientConfig
from penstock.demo.shop import BrokerProcess
from penstock.errors import BadSettings, NoAnswer, PenstockError, Refused
from penstock.store.settings import Settings

BROKERS: Final = 3
OWN_TTL_S: Final = 3
"""The lease with an etcd of our own, which has short timeouts. A foreign one may have the defaults, and so have we."""
WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.02
_HEARTBEAT_MS, _ELECTION_MS = 50, 500
NO_ETCD: Final = (
    "the drill needs etcd, and there is no program `etcd` here; install it (Debian and Ubuntu: etcd-server), or name a "
    "running one with --dcs HOST:PORT"
)


class StrikeKind(StrEnum):
    """What is done to a master."""

    KILL = "kill"
    PAUSE = "pause"
    SWITCHOVER = "switchover"


class DrillCluster(Protocol):
    """Brokers of one name that elect their master."""

    @property
    def config(self) -> ClientConfig:
        """How clients reach it."""

    @property
    def topic(self) -> str:
        """The topic that is the drill's own."""

    def view(self) -> View:
        """Returns what the engine holds. Raises EngineAway."""

    def strike(self, kind: StrikeKind, master: Leader) -> Callable[[], None]:
        """Harms the master. Returns what makes it whole again."""


def wait_for(condition: Callable[[], bool], otherwise: str, within_s: float = WITHIN_S) -> None:
    """Waits until a condition holds. An engine that does not answer is asked again. Raises NoAnswer."""
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(EngineAway):
            if condition():
                return
        if time.monotonic() > deadline:
            raise NoAnswer(f"{otherwise} within {within_s:g} s")
        time.sleep(_LOOK_S)


def order_switchover(session: Session) -> None:
    """Has the master hand over to the best replica. Raises BadOrder, Refused or NoAnswer."""
    order = operator_orders.switch_over(session.view(), 0, secrets.token_hex(8), time.time_ns() // 1_000_000)
    outcome = session.commit(order)
    if not isinstance(outcome, Committed):
        raise Refused("the engine did not take the order of a switchover; try again", code=0)


class ExistingCluster:
    """A cluster that runs already. Use it in a `with` block."""

    def __init__(self, config: ClientConfig, settings: Settings) -> None:
        """`settings` are those of its brokers. Raises BadSettings or EngineAway."""
        broker = BrokerSettings.of(settings)
        if broker.failover == "off":
            raise BadSettings("failover is off in these settings; name the brokers' broker.conf with --config")
        self.config = config
        self.topic = f"penstock-drill-{secrets.token_hex(4)}"
        self._cluster_name = broker.broker_cluster_name
        self._session = engine_of(settings, broker)(False)

    def view(self) -> View:
        return self._session.view()

    def strike(self, kind: StrikeKind, master: Leader) -> Callable[[], None]:
        if kind is not StrikeKind.SWITCHOVER:
            raise BadSettings("the drill kills and pauses only brokers that it started itself; use --switchover")
        order_switchover(self._session)
        return lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from penstock.client.sync import Admin

        self._session.close()
        with contextlib.suppress(PenstockError), Admin(self.config) as admin:
            admin.topics.delete(self.topic, cluster=self._cluster_name)


class MadeCluster:
    """A cluster of processes in a folder. Use it in a `with` block, which starts and ends it."""

    def __init__(self, folder: Path, dcs: str | None, pairs: Sequence[str] = ()) -> None:
        """`dcs` are addresses of a running etcd; None: one is started. `pairs` are further settings of the brokers.

        Raises BadSettings.
        """
        self._etcd = "" if dcs is not None else shutil.which("etcd") or ""
        if dcs is None and not self._etcd:
            raise BadSettings(NO_ETCD)
        self.topic = "drill"
        self.config = ClientConfig("127.0.0.1:1")
        self._folder = folder
        self._dcs = dcs or ""
        self._pairs = pairs
        self._prefix = f"/penstock-drill-{secrets.token_hex(8)}"
        self._children: list[subprocess.Popen[str]] = []
        self._brokers: list[BrokerProcess] = []
        self._session: Session | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def view(self) -> View:
        assert self._session is not None
        return self._session.view()

    def strike(self, kind: StrikeKind, master: Leader) -> Callable[[], None]:
        if kind is StrikeKind.SWITCHOVER:
            assert self._session is not None
            order_switchover(self._session)
            return lambda: None
        broker = next(each for each in self._brokers if each.address == master.address)
        if kind is StrikeKind.PAUSE:
            broker.pause()
            return broker.resume
        broker.kill()
        return broker.start

    # -- start and end ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._etcd:
            self._dcs = self._start_etcd()
        namesrv = self._start_namesrv()
        self.config = ClientConfig(namesrv)
        common = {
            "flushDiskType": "SYNC_FLUSH",
            "namesrvAddr": namesrv,
            "failover": "etcd",
            "dcsAddr": self._dcs,
            "dcsPrefix": self._prefix,
        }
        if self._etcd:
            common["failoverTtlMillis"] = str(OWN_TTL_S * 1000)
        shared = [*(f"{name}={value}" for name, value in common.items()), *self._pairs]
        settings = Settings.load(None, shared)
        self._session = engine_of(settings, BrokerSettings.of(settings))(False)
        self._session.view()  # an engine that does not answer is told at once
        for number in range(1, BROKERS + 1):
            pairs = [*shared, f"haListenPort={_free_port()}"]
            # Of several brokers with free ports one might take the port of another for its metrics.
            options = ["--observe-port", "off", *(f"--set={pair}" for pair in pairs)]
            name = f"broker{number}"
            broker = BrokerProcess(self._folder / name, self._folder / f"{name}.log", namesrv="off", options=options)
            self._brokers.append(broker)
            broker.start()

    def _start_etcd(self) -> str:
        host = "127.0.0.1"
        port, peer = _free_port(), _free_port()
        client, peers = f"http://{host}:{port}", f"http://{host}:{peer}"
        command = [self._etcd, "--name", "drill", "--data-dir", str(self._folder / "etcd"), "--logger", "zap"]
        command += ["--log-level", "error", "--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", f"drill={peers}", "--initial-cluster-state", "new"]
        command += ["--heartbeat-interval", str(_HEARTBEAT_MS), "--election-timeout", str(_ELECTION_MS)]
        process = self._run(command, "etcd.log")
        wait_for(lambda: process.poll() is not None or _serves_reads(host, port), "etcd did not start")
        if process.poll() is not None:
            raise PenstockError(f"etcd ended with status {process.returncode}: {_last_line(self._folder / 'etcd.log')}")
        return f"{host}:{port}"

    def _start_namesrv(self) -> str:
        command = [sys.executable, "-m", "penstock.cli.main", "namesrv", "--listen", "127.0.0.1:0", "--json"]
        process = self._run(command, "namesrv.log", stdout=subprocess.PIPE)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise PenstockError(f"the name server did not start: {_last_line(self._folder / 'namesrv.log')}")
        return str(json.loads(line)["namesrv"])

    def _run(self, command: Sequence[str], log: str, stdout: int | None = None) -> subprocess.Popen[str]:
        """Starts a child that Ctrl-C at the terminal does not reach: `_close` ends it."""
        with (self._folder / log).open("a", encoding="utf-8") as file:
            out: Any = file if stdout is None else stdout
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=file, text=True, process_group=0
            )
        self._children.append(process)
        return process

    def _close(self) -> None:
        """Kills everything that was started, and removes the keys from an etcd that it did not start."""
        for broker in self._brokers:
            broker.kill()
        if self._session is not None:
            if not self._etcd:
                with contextlib.suppress(EngineAway, BadEngine):
                    self._remove_keys(self._session)
            self._session.close()
        for process in reversed(self._children):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    @staticmethod
    def _remove_keys(session: Session) -> None:
        view = session.view()
        keys = {STATE, LEADER, REQUEST, *map(member_key, view.members)}
        keys |= {history_key(entry.epoch) for entry in session.history(1000)}
        for at in range(0, len(keys), _KEYS_AT_A_TIME):
            some = sorted(keys)[at : at + _KEYS_AT_A_TIME]
            session.commit(Transaction(what=ChangeKind.FORGET, deletes=frozenset(some)))


_KEYS_AT_A_TIME: Final = 64
"""etcd takes 128 operations in a transaction."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serves_reads(host: str, port: int) -> bool:
    """Whether a node of etcd has a leader: it answers a linearizable read."""
    connection = http.client.HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request("POST", "/v3/kv/range", '{"key": "AA=="}')
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "its log is empty"
