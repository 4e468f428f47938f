"""A broker that stands for election, as `penstock serve` runs it, stopped while its role changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.etcd import running_etcd
from support.loopback import SOON_S, free_port

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.cli.broker_process import ListeningPort, load_settings
from penstock.cli.elected_broker import ElectedBroker
from penstock.store import MessageStore, Settings


@pytest.mark.etcd
def test_a_stop_during_a_change_of_the_role_is_clean(tmp_path: Path) -> None:
    """The process closes its port when a signal comes: a broker that is being elected must still start and stop."""

    async def stop_early(settings: Settings) -> None:
        port, stop, serves = ListeningPort("127.0.0.1:0", settings), asyncio.Event(), asyncio.Event()
        store = MessageStore.open(tmp_path / "store", port.settings, in_sync_set=True)
        elected = ElectedBroker(store, BrokerSettings.of(port.settings), None, None, stop)

        def on_serving(broker: Broker) -> None:
            serves.set()

        await elected.start(port)
        port.bound.close()
        elected.watch(on_serving)
        _, pending = await asyncio.wait(
            [asyncio.create_task(each.wait()) for each in (serves, stop)],
            timeout=SOON_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in pending:
            task.cancel()
        assert await elected.stop()
        assert serves.is_set()
        assert not elected.has_left, "it did not end by an error"

    (tmp_path / "etcd").mkdir()
    with running_etcd(tmp_path / "etcd") as (node,):
        pairs = ("failover=etcd", "dcsAddr={}:{}".format(*node.address), f"haListenPort={free_port()}")
        asyncio.run(stop_early(load_settings(tmp_path / "store", None, pairs, dev=True, register=None)))
