"""A cluster of processes: brokers of one name, a name server, an engine's nodes; on loopback, or on own machines.

`Cluster` starts and ends them, and does to them what a nemesis asks for. It knows nothing of who should win: who is
master is read from the engine. After a test, also a failed one, no process of it is left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from penstock.client.sync import Producer
from penstock.errors import PenstockError
from support.brokers import Served
from support.clusters import name_server
from support.etcd import EtcdNode, running_etcd
from support.failover.clocks import Clock, build_library
from support.failover.evidence import (
    Engine,
    EngineAway,
    EtcdEngine,
    ZookeeperEngine,
    log_end,
    queue_ends,
    read_replica,
)
from support.failover.history import Replica
from support.failover.load import TOPIC
from support.failover.network import Machine, Network
from support.loopback import free_port
from support.zookeeper import ZookeeperNode, running_zookeeper

_SOON_S = 120.0
COMMON: Mapping[str, object] = {
    "flushDiskType": "SYNC_FLUSH",
    "haSendHeartbeatInterval": 300,
    "haHousekeepingInterval": 3000,
    "slaveTimeout": 1500,
}


class Member:
    """One broker: its process, its folder, its machine and its clock."""

    def __init__(
        self, name: str, folder: Path, settings: Mapping[str, object], machine: Machine | None, clock: Clock | None
    ) -> None:
        self.name = name
        self.folder = folder
        self._clock = clock
        within: tuple[str, ...] = () if machine is None else machine.within
        if clock is not None:
            within += clock.within
        host = "127.0.0.1" if machine is None else machine.address
        pairs = [f"{key}={value}" for key, value in settings.items()]
        self.process = Served(folder, *pairs, host=host, within=within)
        self.is_running = False

    @property
    def address(self) -> str:
        return self.process.address

    def start(self) -> None:
        self.launch()
        self.process.wait_until_up()

    def launch(self) -> None:
        """Starts it if it does not run, and does not wait until it answers."""
        if not self.is_running:
            self.is_running = True
            self.process.launch()

    def kill(self) -> None:
        if self.is_running:
            self.resume()
            self.process.kill()
            self.is_running = False

    def stop(self) -> None:
        """Ends it by SIGTERM; kills it if it does not end."""
        if self.is_running:
            self.resume()
            try:
                self.process.stop()
            except subprocess.TimeoutExpired:
                self.process.kill()
            self.is_running = False

    def pause(self) -> None:
        if self.is_running:
            os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.is_running:
                os.kill(self.process.pid, signal.SIGCONT)

    def wipe(self) -> None:
        """Its disk is lost; only while it does not run."""
        assert not self.is_running
        shutil.rmtree(self.folder, ignore_errors=True)

    def step_clock(self, seconds: float) -> None:
        """Its wall clock shows so much more, or less, than the real time."""
        assert self._clock is not None
        self._clock.step(seconds)

    def evidence(self) -> Replica:
        return read_replica(self.name, self.address, self.folder)


class Cluster:
    """Brokers of one name. Use it in a `with` block."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 3,
        engines: int = 1,
        engine: str = "etcd",
        ttl_s: int = 3,
        machines: Network | None = None,
        has_clocks: bool = False,
        queues: int = 4,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Without engines, `start` has the first broker as SYNC_MASTER and the others as its slaves.

        `engine` is etcd, or zookeeper with one node on this machine.
        """
        self._folder = folder
        self._brokers = brokers
        self._engines = engines
        self._engine_name = engine
        self._ttl_s = ttl_s
        self.machines = machines
        self._has_clocks = has_clocks
        self._settings = settings or {}
        self.queues = queues
        self.namesrv = ""
        self.members: list[Member] = []
        self.nodes: Sequence[EtcdNode | ZookeeperNode] = []
        self.engine: Engine | None = None
        self._last_master = ""
        self._stack = contextlib.ExitStack()

    @property
    def folder(self) -> Path:
        return self._folder

    # -- start and end ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _machine(self, name: str) -> Machine | None:
        return None if self.machines is None else self.machines.add(name)

    def _start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        if self._engines:
            self.engine = self._start_engine()
            self._stack.callback(self.engine.close)
        place = self._machine("names")
        if place is None:
            named = name_server()
        else:
            named = name_server(place.address, place.within, "registerBrokerFrom=10.213.0.0/16")
        self.namesrv = self._stack.enter_context(named)
        self._stack.callback(self._end_members)
        self._make_members()
        for member in self.members:
            member.start()
        self._wait_for_a_master()

    def _start_engine(self) -> Engine:
        if self._engine_name == "zookeeper":
            assert self._engines == 1
            assert self.machines is None
            (node,) = self.nodes = self._stack.enter_context(running_zookeeper(self._folder))
            return ZookeeperEngine(node.address, node.data, "/penstock/DefaultCluster/broker-a")
        places = [self._machine(f"n{number}") for number in range(self._engines)]
        machines = [(place.address, place.within) for place in places if place is not None]
        self.nodes = self._stack.enter_context(running_etcd(self._folder, self._engines, machines=machines))
        return EtcdEngine([node.address for node in self.nodes])

    def _make_members(self) -> None:
        library = build_library(self._folder) if self._has_clocks else None
        ports = [free_port() for _ in range(self._brokers)]
        places = [self._machine(f"b{number}") for number in range(self._brokers)]
        hosts = ["127.0.0.1" if place is None else place.address for place in places]
        for number in range(self._brokers):
            own: dict[str, object] = {
                **COMMON,
                "namesrvAddr": self.namesrv,
                "haListenPort": ports[number],
                "defaultTopicQueueNums": self.queues,
                **self._settings,
            }
            if places[number] is not None:
                own |= {"brokerIP2": hosts[number], "haAllowFrom": ",".join(f"{host}/32" for host in hosts)}
            if self._engines:
                addresses = ";".join(f"{host}:{port}" for host, port in (node.address for node in self.nodes))
                own |= {"failover": self._engine_name, "dcsAddr": addresses, "failoverTtlMillis": self._ttl_s * 1000}
            elif number:
                first = self.members[0]
                master = {"haMasterAddress": f"{hosts[0]}:{ports[0]}", "masterAddr": first.address}
                own |= {"brokerRole": "SLAVE", "brokerId": number, **master}
            else:
                own |= {"brokerRole": "SYNC_MASTER"}
            name = f"b{number}"
            clock = None if library is None else Clock(library, self._folder / f"{name}.clock")
            self.members.append(Member(name, self._folder / name, own, places[number], clock))

    def _wait_for_a_master(self) -> None:
        """Returns when name servers know a broker that takes messages; the first one creates the topic."""

        def is_known() -> bool:
            try:
                with Producer("PID_start", self.namesrv) as producer:
                    return bool(producer.queues(TOPIC))
            except PenstockError:
                return False

        self.wait_for(is_known, "no broker takes messages")

    def _end_members(self) -> None:
        """Slaves first, so that no other replica is elected at the end."""
        master = self.master()
        for member in sorted(self.members, key=lambda member: member is master):
            member.stop()

    def said(self) -> str:
        return "\n".join(f"{member.name} {member.address}:\n{member.process.said}" for member in self.members)

    def wait_for(self, condition: Callable[[], bool], otherwise: str, within_s: float = _SOON_S) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"{otherwise}\n{self.said()}"
            time.sleep(0.05)

    # -- who is who ------------------------------------------------------------------------------------------

    def master(self) -> Member | None:
        """Returns the master, as the engine says; the last known one if the engine does not answer."""
        if self.engine is None:
            return self.members[0] if self.members else None
        with contextlib.suppress(EngineAway):
            self._last_master = self.engine.master_address() or self._last_master
        return next((member for member in self.members if member.address == self._last_master), None)

    def slaves(self) -> list[Member]:
        master = self.master()
        return [member for member in self.members if member is not master]

    def sync_set(self) -> frozenset[str]:
        """Returns the addresses of the replicas in the sync set that have ever been seen running."""
        if self.engine is None:
            return frozenset(member.address for member in self.members)
        found = self.engine.read()
        members = {int(key.partition("/")[2]): value for key, value in found.items() if key.startswith("members/")}
        wanted = found.get("state", {}).get("sync", [])
        return frozenset(members[each]["address"] for each in wanted if each in members)

    def engine_leader(self) -> EtcdNode | ZookeeperNode | None:
        """Returns the engine's leader; None if there is none that answers."""
        return next((node for node in self.nodes if isinstance(node, ZookeeperNode) or node.is_leader()), None)

    def wait_until_copied(self) -> None:
        """Returns when every broker has the topic in its table."""
        tables = [member.folder / "config" / "topics.json" for member in self.members]
        self.wait_for(
            lambda: all(table.exists() and f'"{TOPIC}"' in table.read_text() for table in tables),
            "the topic is not known to all brokers",
        )

    # -- the end ---------------------------------------------------------------------------------------------

    def settle(self, within_s: float = _SOON_S) -> bool:
        """Starts and mends everything; returns whether all logs are equal in time. Producers must have ended."""
        if self.machines is not None:
            self.machines.heal()
        for node in self.nodes:
            if node.process.poll() is not None:
                node.restart()
            node.signal(signal.SIGCONT)
        for member in self.members:
            member.resume()
            member.start()
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            ends = {log_end(member.folder) for member in self.members}
            if len(ends) == 1 and self.master() is not None:
                return True
            time.sleep(0.2)
        return False

    def wait_until_dispatched(self) -> None:
        """Returns when the queues of all brokers are equal, once consumers have received everything.

        A slave puts into its queues only what its master has confirmed, which it hears a heartbeat later. If it is
        stopped before, the end of its log has no units, and gets them at the next start.
        """

        def are_equal() -> bool:
            first, *others = (queue_ends(member.folder) for member in self.members)
            return all(each == first for each in others)

        self.wait_for(are_equal, "the queues do not become equal")

    def evidence(self) -> Sequence[Replica]:
        """Ends the brokers; returns what they have."""
        self._end_members()
        return [member.evidence() for member in self.members]
