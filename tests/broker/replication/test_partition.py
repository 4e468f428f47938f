"""A slave in a network of its own: on another machine, as far as either side can tell, until packets get lost.

Needs root and Linux's network namespaces; skipped, with the reason, where they cannot be made.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import Served
from support.clusters import Load, log_on_disk, nothing_is_lost, wait_for
from support.loopback import free_port

HERE, THERE = "10.213.77.1", "10.213.77.2"
QUICK = ("haSendHeartbeatInterval=300", "haHousekeepingInterval=2000", "flushDiskType=SYNC_FLUSH")


class Network:
    """A cable between this network and another; `cut` has it lose every packet, and nobody is told."""

    def __init__(self, name: str) -> None:
        self.within = ("ip", "netns", "exec", name)
        self._name = name
        self._end = name[:12]

    def make(self) -> None:
        here, there = f"{self._end}a", f"{self._end}b"
        for command in (
            f"ip netns add {self._name}",
            f"ip link add {here} type veth peer name {there} netns {self._name}",
            f"ip addr add {HERE}/24 dev {here}",
            f"ip link set {here} up",
            f"ip -n {self._name} addr add {THERE}/24 dev {there}",
            f"ip -n {self._name} link set {there} up",
            f"ip -n {self._name} link set lo up",
        ):
            subprocess.run(command.split(), check=True, capture_output=True)

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self._name], capture_output=True)

    def _at_both_ends(self, what: str) -> None:
        for where in (f"{self._end}a", f"{self._end}b"):
            tc = ["tc"] if where.endswith("a") else ["tc", "-n", self._name]
            subprocess.run([*tc, "qdisc", *what.replace("DEVICE", where).split()], check=True, capture_output=True)

    def cut(self) -> None:
        """No packet is as small as what this lets through."""
        self._at_both_ends("add dev DEVICE root tbf rate 8bit burst 1 limit 1")

    def mend(self) -> None:
        self._at_both_ends("del dev DEVICE root")


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network(f"pst{os.getpid()}")
    try:
        try:
            made.make()
            made.cut()
            made.mend()
        except (OSError, subprocess.CalledProcessError) as error:
            said = error.stderr.decode() if isinstance(error, subprocess.CalledProcessError) else str(error)
            pytest.skip(f"no network namespace can be made here: {said.strip()}")
        yield made
    finally:
        with contextlib.suppress(OSError):
            made.remove()


@pytest.mark.slow
def test_a_slave_on_another_machine_follows_and_survives_a_partition(tmp_path: Path, network: Network) -> None:
    port = free_port()
    first = Served(
        tmp_path / "a",
        "brokerRole=SYNC_MASTER",
        f"brokerIP2={HERE}",
        f"haListenPort={port}",
        f"haAllowFrom={THERE}/32",
        "slaveTimeout=500",
        *QUICK,
        host=HERE,
    )
    second = Served(
        tmp_path / "b",
        "brokerRole=SLAVE",
        "brokerId=1",
        f"haMasterAddress={HERE}:{port}",
        f"masterAddr={first.address}",
        *QUICK,
        host=THERE,
        within=network.within,
    )
    with first, second:
        wait_for(lambda: "follows from" in first.said, lambda: first.said + second.said)
        with Load(first.namesrv, "a") as load:
            load.wait_for_more(50)
            network.cut()
            wait_for(lambda: "it was silent for 2000 ms" in first.said, lambda: first.said)
            wait_for(lambda: "the master was silent for 2 s" in second.said, lambda: second.said)
            wait_for(lambda: load.others["SLAVE_NOT_AVAILABLE"], lambda: str(load.others))
            assert load.others["FLUSH_SLAVE_TIMEOUT"], "sends waited for the slave, while it was thought to be there"
            network.mend()
            load.wait_for_more(50)
        wait_for(lambda: log_on_disk(first.folder) == log_on_disk(second.folder), lambda: second.said)
        topics = second.folder / "config" / "topics.json"
        wait_for(lambda: topics.exists() and "orders" in topics.read_text(), lambda: second.said)
    nothing_is_lost(second.folder, load.acknowledged)
