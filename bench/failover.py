"""The suite `failover`: how long a client waits while a master is replaced, beside RocketMQ 5's controller mode.

Both sides have three brokers of one name and one node that decides: etcd for ours, a name server with a controller for
RocketMQ's. Both acknowledge a message when every replica in sync has it, without waiting for the disk. The driver is
the same: one producer of our client that sends a small message every 5 ms, without retries, and asks the same name
server as any client. An outage is the longest time between two acknowledgements around a strike. After each strike the
set is made whole again before the next one. A killed broker starts again, a paused one goes on. RocketMQ's side gets
fewer strikes, because it takes half a minute to become whole. Some of its brokers do not return to the set after a
pause or a switchover; they are started again.

`steady` compares what a send costs while nothing fails: a master that waits for its two slaves and renews a lease,
beside a SYNC_MASTER that waits for its one slave.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec
from support.failover.cluster import Cluster
from support.failover.evidence import EngineAway
from support.loopback import free_port, free_port_pair
from support.peers import JAVA as JAVA_PROGRAMS
from support.peers import OPENED, broker_command, broker_environment

from bench.load import generate
from bench.processes import class_path, end_child
from bench.report import java_versions
from bench.run import JAVA, OURS, Goal, Row, Run, Task, cpu_seconds
from bench.workspace import GIB, MIB, BenchFailed
from penstock.client.message import Message
from penstock.client.producer import ProducerOptions
from penstock.client.sync import Admin, Producer
from penstock.errors import PenstockError
from penstock.protocol.command import Command
from penstock.remoting.connection import connect

TTL_S = 3
BROKERS = 3
PAIR = "pair"
TOPIC = "outages"
STRIKES = ("killed", "paused", "switchover")
GOALS_S = {"killed": (0.5, 1.0), "paused": (TTL_S + 1.5, TTL_S + 1.5), "switchover": (0.3, 0.3)}
"""Seconds that p50 and p99 must not exceed."""
ROCKETMQ_5 = JAVA_PROGRAMS / "broker5"
_EVERY_S = 0.005
_TIMEOUT_S = 1.0
_AFTER = 40
"""Acknowledgements after which an outage is over."""
_WITHIN_S = 120.0
_STUCK_S = 45.0
"""Seconds after which a broker of RocketMQ's that is not back in the set is started again."""
_STARTS = 3
_HEAP = "512m"
_GET_SYNC_STATE, _ELECT_MASTER = 1006, 1002


class FailoverSizes(msgspec.Struct, frozen=True):
    """How much is done in a round."""

    strikes: dict[str, dict[str, int]]
    """How often each side is struck, by kind."""
    sends: dict[int, int]
    """Messages of the steady rows, by how many are in flight."""


FULL = FailoverSizes(
    {
        "killed": {OURS: 15, JAVA: 2},
        "paused": {OURS: 4, JAVA: 1},
        "switchover": {OURS: 15, JAVA: 2},
    },
    {1: 5_000, 64: 50_000},
)
QUICK = FailoverSizes({strike: {OURS: 1, JAVA: 1} for strike in STRIKES}, {1: 50, 64: 640})


class FailoverSuite:
    """See the module."""

    name = "failover"
    summary = "A master is killed, paused or replaced: the outage as a client sees it; the cost while nothing fails."
    sides = ("Penstock", "RocketMQ 5.5.0")

    def __init__(self) -> None:
        self._jars: list[Path] = []
        self._sets: dict[str, ReplicaSet] = {}
        self._pair: Pair | None = None

    def need(self, quick: bool) -> int:
        return 6 * GIB

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes = QUICK if quick else FULL
        both = self._sets = {
            OURS: PenstockSet(folder / "penstock"),
            JAVA: JavaSet(folder / "java", self._jars),
        }
        pair = self._pair = Pair(folder / "pair")
        found = [
            Task(
                strike,
                _rows(strike),
                {side: partial(strike_often, strike, sizes.strikes[strike][side], both[side]) for side in both},
            )
            for strike in STRIKES
        ]
        for window, count in sizes.sends.items():
            title = f"send, 1 KB, {window} in flight: acknowledged by two slaves, beside SYNC_MASTER and one slave"
            row = Row(f"steady-{window}", title, "messages/s", Goal("ratio at least", 0.9), beside=PAIR)
            sides = {OURS: partial(steady, both[OURS], window, count), PAIR: partial(steady, pair, window, count)}
            found.append(Task("steady", (row,), sides))
        return found

    @contextmanager
    def peer(self, folder: Path, quick: bool) -> Iterator[dict[str, str]]:
        self._jars += class_path(ROCKETMQ_5)
        yield java_versions(self._jars)

    def close(self) -> None:
        for each in (*self._sets.values(), self._pair):
            if each is not None:
                each.stop()


def _rows(strike: str) -> tuple[Row, ...]:
    what = {"killed": "master killed", "paused": f"master paused, lease of {TTL_S} s", "switchover": "switchover"}[
        strike
    ]
    goals = dict(zip(("p50", "p99"), GOALS_S[strike], strict=True))
    return tuple(
        Row(
            f"{strike}-{part}",
            f"{what}: longest time without an acknowledgement, {part}",
            "s",
            Goal("at most", goals[part]) if part in goals else None,
            less_is_better=True,
            figure=part,
        )
        for part in ("p50", "p99", "max")
    )


# -- the rows --------------------------------------------------------------------------------------------------------


def strike_often(strike: str, count: int, replicas: ReplicaSet) -> Run:
    """Strikes the master a number of times; the figures are those of the outages."""
    replicas.start()
    with Driver(replicas.namesrv) as driver:
        outages = sorted(_outage(strike, replicas, driver) for _ in range(count))
    figures = {"p50": share_of(outages, 0.5), "p99": share_of(outages, 0.99), "max": outages[-1]}
    return Run(figures, {})


def share_of(values: list[float], share: float) -> float:
    """The least of these sorted values that so large a share of them does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def longest_gap(times: list[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(times))


def _outage(strike: str, replicas: ReplicaSet, driver: Driver) -> float:
    replicas.wait_until_whole()
    driver.wait_for_more(_AFTER)
    before, master = len(driver.acknowledged), replicas.master()
    getattr(replicas, {"killed": "kill", "paused": "pause", "switchover": "switch_over"}[strike])(master)
    deadline = time.perf_counter() + _WITHIN_S
    while replicas.master() in ("", master):
        if time.perf_counter() > deadline:
            raise BenchFailed(f"no other broker became master within {_WITHIN_S:g} s")
        time.sleep(0.02)
    driver.wait_for_more(_AFTER)
    outage = longest_gap(driver.acknowledged[before - 1 :])
    replicas.repair(master)
    return outage


def steady(replicas: ReplicaSet, window: int, count: int) -> Run:
    """Sends to a set to which nothing happens."""
    replicas.start()
    replicas.wait_until_whole()
    port = int(replicas.master().rpartition(":")[2])
    cpu = cpu_seconds(*replicas.pids)
    done = generate(do="send", topic=f"steady{window}", port=port, body=1024, count=count, window=window)
    spent = cpu_seconds(*replicas.pids) - cpu
    return Run.of(count / done["seconds"], {"messages": int(done["replies"])}, spent, count)


# -- the driver ------------------------------------------------------------------------------------------------------


class Driver:
    """One producer that sends all the time. Use it in a `with` block."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver")
        self.acknowledged: list[float] = []
        """When each SEND_OK came, in seconds."""

    def _run(self) -> None:
        options = ProducerOptions(timeout_s=_TIMEOUT_S, retries=0)
        with Producer("PID_outage", self._namesrv, options=options) as producer:
            while not self._stop.wait(_EVERY_S):
                try:
                    if producer.send(Message(TOPIC, b"x" * 100)).ok:
                        self.acknowledged.append(time.perf_counter())
                except PenstockError:
                    continue

    def wait_for_more(self, count: int) -> None:
        goal, deadline = len(self.acknowledged) + count, time.perf_counter() + _WITHIN_S
        while len(self.acknowledged) < goal:
            if time.perf_counter() > deadline:
                raise BenchFailed(f"{count} messages were not acknowledged within {_WITHIN_S:g} s")
            time.sleep(0.01)

    def __enter__(self) -> Driver:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


# -- the sides -------------------------------------------------------------------------------------------------------


class ReplicaSet(Protocol):
    """Brokers of one name. Brokers are known by their addresses."""

    @property
    def namesrv(self) -> str: ...

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes whose CPU time counts."""

    def start(self) -> None:
        """Starts it if it does not run."""

    def stop(self) -> None:
        """Ends it and removes its stores."""

    def master(self) -> str: ...

    def wait_until_whole(self) -> None:
        """Returns when every broker is in sync. Raises BenchFailed."""

    def kill(self, broker: str) -> None: ...

    def pause(self, broker: str) -> None: ...

    def switch_over(self, broker: str) -> None:
        """Has another broker take the place of this one."""

    def repair(self, broker: str) -> None:
        """Has a broker run again."""


def registered_master(namesrv: str) -> str:
    """The address that name servers give to clients as the master's; empty if there is none."""
    try:
        with Admin(namesrv) as admin:
            table = admin.cluster.info().broker_addr_table
    except PenstockError:
        return ""
    return next((data.broker_addrs.get(0, "") for data in table.values()), "")


def wait_until(condition: Callable[[], bool], otherwise: str, within_s: float = _WITHIN_S) -> None:
    """Returns when a condition holds; an engine that does not answer may do so later. Raises BenchFailed."""
    deadline = time.perf_counter() + within_s
    while time.perf_counter() < deadline:
        with suppress(EngineAway):
            if condition():
                return
        time.sleep(0.1)
    raise BenchFailed(f"{otherwise} within {within_s:g} s")


class PenstockSet:
    """Three brokers of ours and one node of etcd."""

    engines = 1
    brokers = BROKERS

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(member.process.pid for member in self.cluster.members)

    def start(self) -> None:
        if self._cluster is None:
            settings = {"flushDiskType": "ASYNC_FLUSH"}
            made = Cluster(self._folder, brokers=self.brokers, engines=self.engines, ttl_s=TTL_S, settings=settings)
            self._cluster = made.__enter__()

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.__exit__(None, None, None)
            self._cluster = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def master(self) -> str:
        return registered_master(self.namesrv)

    def wait_until_whole(self) -> None:
        engine = self.cluster.engine
        assert engine is not None
        wait_until(lambda: len(engine.read().get("state", {}).get("sync", ())) == BROKERS, "the set was not whole")

    def _member(self, broker: str) -> int:
        return next(at for at, member in enumerate(self.cluster.members) if member.address == broker)

    def kill(self, broker: str) -> None:
        self.cluster.members[self._member(broker)].kill()

    def pause(self, broker: str) -> None:
        self.cluster.members[self._member(broker)].pause()

    def switch_over(self, broker: str) -> None:
        engine = self.cluster.engine
        assert engine is not None
        if not engine.order_switchover(f"bench{time.monotonic_ns()}"):
            raise BenchFailed("another switchover was under way")

    def repair(self, broker: str) -> None:
        member = self.cluster.members[self._member(broker)]
        member.resume()
        member.start()


class Pair(PenstockSet):
    """A SYNC_MASTER and its slave."""

    engines = 0
    brokers = 2

    def wait_until_whole(self) -> None:
        wait_until(lambda: "follows from" in self.cluster.members[0].process.said, "no slave followed")


class JavaSet:
    """Three of RocketMQ's brokers in controller mode, and a name server that has the controller."""

    def __init__(self, folder: Path, jars: list[Path]) -> None:
        self._folder = folder
        self._jars = jars
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._controller = 0
        self.namesrv = ""

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes.values())

    def start(self) -> None:
        if self._processes:
            return
        try:
            self._start_names()
            for number in range(BROKERS):
                self._start_broker(number)
            wait_until(lambda: bool(self.master()), "no broker registered as master")
        except BaseException:
            self.stop()
            raise

    def _start_names(self) -> None:
        home, port, self._controller = self._folder / "names", free_port(), free_port()
        settings = {
            "listenPort": port,
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-127.0.0.1:{self._controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": home / "controller",
        }
        home.mkdir(parents=True)
        (home / "names.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        path = ":".join(map(str, self._jars))
        main = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(home / "names.conf")]
        command = ["java", "-Xmx256m", f"-Duser.home={home}", *opens, "-cp", path, *main]
        self.namesrv = f"127.0.0.1:{port}"
        self._run("names", command, home)

    def _start_broker(self, number: int) -> None:
        port = free_port_pair()
        home = self._folder / f"broker{number}"
        settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": -1,
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": self.namesrv,
            "enableControllerMode": "true",
            "controllerAddr": f"127.0.0.1:{self._controller}",
            "allAckInSyncStateSet": "true",
            "flushDiskType": "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": 64 * MIB,
            "autoCreateTopicEnable": "true",
            "defaultTopicQueueNums": 4,
            "timerWheelEnable": "false",
            "diskMaxUsedSpaceRatio": 95,
        }
        command = broker_command(home, home / "store", port, self._jars, settings, heap=_HEAP)
        address = f"127.0.0.1:{port}"
        self._commands[address] = command
        self._run(address, command, home)

    def _run(self, name: str, command: list[str], home: Path) -> None:
        with (home / "output.txt").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command, stdout=output, stderr=output, env=broker_environment(home), cwd=home
            )

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
            end_child(process)
        self._processes.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def master(self) -> str:
        return registered_master(self.namesrv)

    def _ask_controller(self, code: int, body: bytes = b"", **ext: str) -> Command:
        async def ask() -> Command:
            connection = await connect(("127.0.0.1", self._controller))
            try:
                return await connection.request(Command(code, ext, body), 5.0)
            finally:
                connection.close()

        return asyncio.run(ask())

    def _in_sync(self) -> list[dict[str, object]]:
        try:
            reply = self._ask_controller(_GET_SYNC_STATE, json.dumps(["broker-a"]).encode())
            table = json.loads(reply.body or b"{}").get("replicasInfoTable", {})
        except (PenstockError, ValueError):
            return []
        found: list[dict[str, object]] = table.get("broker-a", {}).get("inSyncReplicas", [])
        return found

    def wait_until_whole(self) -> None:
        for _ in range(_STARTS):
            with suppress(BenchFailed):
                wait_until(self._is_whole, "the sync state set was not whole", _STUCK_S)
                return
            in_sync = {str(each["brokerAddress"]) for each in self._in_sync()}
            for broker in self._commands.keys() - in_sync:
                self.kill(broker)
                self.repair(broker)
        wait_until(self._is_whole, "the sync state set was not whole")

    def _is_whole(self) -> bool:
        return len(self._in_sync()) == BROKERS

    def kill(self, broker: str) -> None:
        self._processes[broker].kill()
        self._processes[broker].wait()

    def pause(self, broker: str) -> None:
        os.kill(self._processes[broker].pid, signal.SIGSTOP)

    def switch_over(self, broker: str) -> None:
        other = next(each["brokerId"] for each in self._in_sync() if each["brokerAddress"] != broker)
        names = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": str(other)}
        self._ask_controller(_ELECT_MASTER, **names, designateElect="true")

    def repair(self, broker: str) -> None:
        process = self._processes[broker]
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
        else:
            self._run(broker, self._commands[broker], self._folder / self._home(broker))

    def _home(self, broker: str) -> str:
        return f"broker{list(self._commands).index(broker)}"
