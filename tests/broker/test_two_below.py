"""Every broker also listens two ports below its own: RocketMQ's clients up to 4.5.0 send and pull there by default."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from support.brokers import WAIT_S, BrokerHome, RawClient, ok

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.remoting.connection import connect
from penstock.store import MessageStore, Settings

if TYPE_CHECKING:
    from broker.conftest import Run


def two_ports() -> tuple[socket.socket, socket.socket]:
    """Returns two bound sockets; the first has the port two below the second's."""
    while True:
        upper, lower = socket.socket(), socket.socket()
        upper.bind(("127.0.0.1", 0))
        try:
            lower.bind(("127.0.0.1", upper.getsockname()[1] - 2))
        except OSError:
            upper.close()
            lower.close()
        else:
            return lower, upper


@pytest.mark.parametrize("taken", [False, True])
def test_an_ordinary_master_listens_two_below_unless_the_port_is_taken(
    home: BrokerHome, run: Run, taken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        lower, upper = two_ports()
        port = upper.getsockname()[1]
        if not taken:
            lower.close()
        broker = Broker(MessageStore.open(home.path, Settings.dev()), BrokerSettings())
        try:
            await broker.start("127.0.0.1", port, upper)
            for at in (port,) if taken else (port, port - 2):
                client = RawClient(await connect(("127.0.0.1", at)), asyncio.Queue())
                ok(await client.send("orders"))
                client.close()
        finally:
            assert await broker.stop(WAIT_S)
            lower.close()
        assert ("up to 4.5.0" in caplog.text) is taken

    run(check())
