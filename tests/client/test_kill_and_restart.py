"""Kill and restart under load: `penstock serve` dies again and again, with SIGKILL, and its clients reconnect.

Every message that was acknowledged is consumed at least once, and each queue of the ordered topic in order.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from client.test_ordered import InOrder, assert_in_order
from support.clients import Gathered
from support.effort import chosen_seed
from support.loopback import free_port

from penstock.client import Message, Producer, ProducerOptions, PushConsumer, PushOptions
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from client.conftest import Run

KILLS = 4
SERVE = (sys.executable, "-m", "penstock.cli.main", "serve", "--profile", "dev", "--json", "--log-level", "error")
SERVE += ("--console", "off")


class Server:
    """A `penstock serve` that can be killed and started again, at the same ports."""

    def __init__(self, store: Path) -> None:
        self._listen, self.namesrv = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._store = store
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [*SERVE, "--store", str(self._store), "--listen", self._listen, "--namesrv", self.namesrv]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it did not start: status {self.end(signal.SIGKILL)}"
        assert json.loads(line)["broker"] == self._listen

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        with self._process:
            self._process.send_signal(number)
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal that does not end the process, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        assert self.end(signal.SIGKILL) == -signal.SIGKILL


class Load:
    """Sends until stopped, and remembers what was acknowledged."""

    def __init__(self, namesrv: str, topic: str, keys: int) -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._keys = keys
        self.acknowledged: set[bytes] = set()
        self.stopped = False

    async def run(self) -> None:
        number = 0
        async with Producer("PID", self._namesrv, options=ProducerOptions(timeout_s=1.0)) as producer:
            while not self.stopped:
                body = b"%d" % number
                key = f"key_{number % self._keys}" if self._keys else ""
                try:
                    await producer.send(Message(self._topic, body, sharding_key=key))
                except PenstockError:
                    await asyncio.sleep(0.02)  # not acknowledged, so nothing is promised
                else:
                    self.acknowledged.add(body)
                number += 1


def test_every_acknowledged_message_is_consumed_and_queues_in_order(run: Run, tmp_path: Path) -> None:
    pauses = random.Random(chosen_seed())
    server = Server(tmp_path / "store")

    async def main() -> None:
        plain = Load(server.namesrv, "plain", 0)
        ordered = Load(server.namesrv, "ordered", 16)
        loads = [asyncio.create_task(load.run()) for load in (plain, ordered)]
        one, two, in_order, also_in_order = Gathered(), Gathered(), InOrder(), InOrder()
        options = PushOptions(consume_from="first")
        in_turn = PushOptions(consume_from="first", ordered=True, suspend_s=0.05)
        async with (
            PushConsumer("CID_plain", one, server.namesrv, subscriptions={"plain": "*"}, options=options),
            PushConsumer("CID_plain", two, server.namesrv, subscriptions={"plain": "*"}, options=options),
            PushConsumer("CID_order", in_order, server.namesrv, subscriptions={"ordered": "*"}, options=in_turn),
            PushConsumer("CID_order", also_in_order, server.namesrv, subscriptions={"ordered": "*"}, options=in_turn),
        ):
            for _ in range(KILLS):
                await asyncio.sleep(pauses.uniform(0.5, 1.5))
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await asyncio.sleep(1.0)
            plain.stopped = ordered.stopped = True
            await asyncio.gather(*loads)
            assert len(plain.acknowledged) > 100
            assert len(ordered.acknowledged) > 100
            async with asyncio.timeout(120):
                while not plain.acknowledged <= {*one.bodies, *two.bodies}:
                    await asyncio.sleep(0.05)
                while not ordered.acknowledged <= {*in_order.bodies, *also_in_order.bodies}:
                    await asyncio.sleep(0.05)
        assert_in_order(in_order, also_in_order)

    server.start()
    run(main())
    assert server.end(signal.SIGTERM) == 0
