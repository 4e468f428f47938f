"""Brokers of one name that elect their master in etcd, as processes; and what etcd holds about them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from penstock.broker.failover.consensus_engine import Committed, EngineAway, View
from penstock.broker.failover.etcd import EtcdNodes, EtcdSession
from penstock.broker.failover.operator_orders import switch_over
from support.brokers import Served
from support.clusters import SAFE, log_on_disk, member, name_server, wait_for
from support.etcd import EtcdNode, running_etcd
from support.loopback import free_port

TTL_S = 2


class ElectedSet:
    """Some brokers, the name server that they register with, and etcd."""

    def __init__(
        self, folder: Path, namesrv: str, nodes: list[EtcdNode], count: int, settings: dict[str, object]
    ) -> None:
        self.namesrv = namesrv
        self.nodes = nodes
        etcd = EtcdNodes(addresses=[each.address for each in nodes])
        self._engine = EtcdSession(etcd, "/penstock/DefaultCluster/broker-a", 0)
        addresses = ";".join(f"{host}:{port}" for host, port in etcd.addresses)
        common = {**SAFE, "failover": "etcd", "dcsAddr": addresses, "failoverTtlMillis": TTL_S * 1000, **settings}
        self.brokers = [
            member(folder / f"b{number}", namesrv, haListenPort=free_port(), **common) for number in range(count)
        ]

    def view(self) -> View:
        while True:
            try:
                return self._engine.view()
            except EngineAway:
                time.sleep(0.05)

    @property
    def master(self) -> Served | None:
        """The broker that the engine names as the master."""
        leader = self.view().leader
        return next((each for each in self.brokers if leader is not None and each.address == leader.address), None)

    @property
    def epoch(self) -> int:
        state = self.view().state
        return 0 if state is None else state.epoch

    def wait_for_master(self, other_than: Served | None = None) -> Served:
        wait_for(lambda: self.master not in (None, other_than), self.said)
        master = self.master
        assert master is not None
        return master

    def wait_until_whole(self) -> None:
        """Returns when every broker is in the sync set."""

        def is_whole() -> bool:
            state = self.view().state
            return state is not None and len(state.sync) == len(self.brokers) and self.view().leader is not None

        wait_for(is_whole, self.said)

    def switch_over(self) -> None:
        view = self.view()
        assert isinstance(self._engine.commit(switch_over(view, 0, "test", 0)), Committed)

    def said(self) -> str:
        return "\n".join([str(self.view()), *(f"--- {each.address}\n{each.said}" for each in self.brokers)])

    def assert_same_logs(self) -> None:
        """Stops all brokers, slaves first, and compares their logs to the byte."""
        master = self.wait_for_master()
        for broker in sorted(self.brokers, key=lambda each: each is master):
            assert broker.stop() == 0, broker.said
        logs = [log_on_disk(each.folder) for each in self.brokers]
        assert all(each == logs[0] for each in logs), [len(each) for each in logs]

    def close(self) -> None:
        for broker in self.brokers:
            if broker.is_running:
                os.kill(broker.pid, signal.SIGCONT)
                broker.kill()
        self._engine.close()


@contextmanager
def elected_set(folder: Path, count: int = 3, nodes: int = 1, **settings: object) -> Iterator[ElectedSet]:
    """Brokers that are in the sync set, all of them, with etcd and a name server."""
    (folder / "etcd").mkdir()
    with running_etcd(folder / "etcd", nodes) as etcd, name_server() as namesrv:
        brokers = ElectedSet(folder, namesrv, etcd, count, settings)
        try:
            with ThreadPoolExecutor(count) as threads:
                list(threads.map(Served.start, brokers.brokers))
            brokers.wait_until_whole()
            yield brokers
        finally:
            brokers.close()
