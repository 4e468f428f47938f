"""A slave in a network of its own: on another machine, as far as either side can tell, until packets get lost.

Needs root and Linux's network namespaces; skipped, with the reason, where they cannot be made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import Served
from support.clusters import Load, log_on_disk, nothing_is_lost, wait_for
from support.failover.network import HERE, Network, network
from support.loopback import free_port

QUICK = ("haSendHeartbeatInterval=300", "haHousekeepingInterval=2000", "flushDiskType=SYNC_FLUSH")


@pytest.fixture
def machines() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.mark.slow
def test_a_slave_on_another_machine_follows_and_survives_a_partition(tmp_path: Path, machines: Network) -> None:
    port, there, here = free_port(), machines.add("there"), machines.address
    first = Served(
        tmp_path / "a",
        "brokerRole=SYNC_MASTER",
        f"brokerIP2={here}",
        f"haListenPort={port}",
        f"haAllowFrom={there.address}/32",
        "slaveTimeout=500",
        *QUICK,
        host=here,
    )
    second = Served(
        tmp_path / "b",
        "brokerRole=SLAVE",
        "brokerId=1",
        f"haMasterAddress={here}:{port}",
        f"masterAddr={first.address}",
        *QUICK,
        host=there.address,
        within=there.within,
    )
    with first, second:
        wait_for(lambda: "follows from" in first.said, lambda: first.said + second.said)
        with Load(first.namesrv, "a") as load:
            load.wait_for_more(50)
            machines.cut_both(HERE, "there")
            wait_for(lambda: "it was silent for 2000 ms" in first.said, lambda: first.said)
            wait_for(lambda: "the master was silent for 2 s" in second.said, lambda: second.said)
            wait_for(lambda: load.others["SLAVE_NOT_AVAILABLE"], lambda: str(load.others))
            assert load.others["FLUSH_SLAVE_TIMEOUT"], "sends waited for the slave, while it was thought to be there"
            machines.heal()
            load.wait_for_more(50)
        wait_for(lambda: log_on_disk(first.folder) == log_on_disk(second.folder), lambda: second.said)
        topics = second.folder / "config" / "topics.json"
        wait_for(lambda: topics.exists() and "orders" in topics.read_text(), lambda: second.said)
    nothing_is_lost(second.folder, load.acknowledged)
