"""Masters and slaves as processes under load, and what is done to them: for tests that ask what was lost.

Each body is sent once and never again, so whatever is twice in a store was doubled there.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from clients.served import Served
from ports import free_port
from replication_processes import ProxyThread, log_on_disk, member, wait_for

from penstock.client.producer import ProducerOptions
from penstock.client.results import SendStatus
from penstock.client.sync import Message, Producer, PullConsumer
from penstock.errors import PenstockError
from penstock.store import MessageStore, Settings

TOPIC = "orders"
SAFE = {"flushDiskType": "SYNC_FLUSH", "defaultTopicQueueNums": 2, "slaveTimeout": 1500}


class Load:
    """Producers that send side by side. Use it in a `with` block."""

    def __init__(self, namesrv: str, name: str, producers: int = 3) -> None:
        self._namesrv = namesrv
        self._name = name
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(producers)]
        self.acknowledged: list[bytes] = []
        """What was answered SEND_OK: at a slave, on its disk."""
        self.others: Counter[str] = Counter()
        """How often something else was answered, or nothing."""

    def _run(self, number: int) -> None:
        chance = random.Random(f"{self._name}{number}")
        options = ProducerOptions(timeout_s=2.5, retries=0)
        with Producer(f"PID_{number}", self._namesrv, options=options) as producer:
            sent = 0
            while not self._stop.is_set():
                body = b"%s-%d-%d " % (self._name.encode(), number, sent) + b"x" * chance.choice((10, 300, 3000))
                sent += 1
                try:
                    status = producer.send(Message(TOPIC, body, keys=f"k{number}-{sent}")).status
                except PenstockError as error:
                    self.others[type(error).__name__] += 1
                    self._stop.wait(0.05)
                    continue
                if status is SendStatus.SEND_OK:
                    self.acknowledged.append(body)
                else:
                    self.others[status] += 1

    def wait_for_more(self, count: int) -> None:
        goal = len(self.acknowledged) + count
        wait_for(lambda: len(self.acknowledged) >= goal, lambda: f"{len(self.acknowledged)} of {goal}, {self.others}")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Reader:
    """A consumer that reads all the time, from whichever broker there is. Use it in a `with` block."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.got: list[bytes] = []

    def _run(self) -> None:
        is_assigned = False
        with PullConsumer("CID_reader", self._namesrv) as consumer:
            while not self._stop.is_set():
                with contextlib.suppress(PenstockError):
                    if not is_assigned:
                        consumer.assign(consumer.queues(TOPIC))
                        is_assigned = True
                    self.got += [message.body for message in consumer.poll(0.5)]
                    continue
                self._stop.wait(0.2)

    def has(self, bodies: Iterable[bytes]) -> bool:
        return set(bodies) <= set(self.got)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


class Group:
    """Brokers of one name, one of which is the master; each slave hears of it through a proxy of its own."""

    def __init__(self, root: Path, namesrv: str, count: int, seed: int) -> None:
        self._namesrv = namesrv
        self._folders = [root / f"broker{number}" for number in range(count)]
        self._chance = random.Random(seed)
        self._seed = seed
        self.master_folder = self._folders[0]
        self.running: dict[Path, Served] = {}
        self._proxies: dict[Path, ProxyThread] = {}
        self._stack = contextlib.ExitStack()

    @property
    def master(self) -> Served:
        return self.running[self.master_folder]

    @property
    def slaves(self) -> list[Served]:
        return [self.running[folder] for folder in self._folders if folder != self.master_folder]

    def start(self) -> None:
        """The master, then its slaves."""
        ha_port = free_port()
        changes = {"brokerRole": "SYNC_MASTER", "haListenPort": ha_port, **SAFE}
        master = member(self.master_folder, self._namesrv, **changes)
        self.running[self.master_folder] = self._stack.enter_context(master)
        for number, folder in enumerate((each for each in self._folders if each != self.master_folder), 1):
            proxy = self._stack.enter_context(ProxyThread(("127.0.0.1", ha_port), self._seed + number))
            self._proxies[folder] = proxy
            changes = {"haMasterAddress": f"127.0.0.1:{proxy.port}", "masterAddr": master.address, **SAFE}
            slave = member(folder, self._namesrv, brokerRole="SLAVE", brokerId=number, **changes)
            self.running[folder] = self._stack.enter_context(slave)
        wait_for(lambda: all("follows the master" in slave.said for slave in self.slaves), self.said)

    def said(self) -> str:
        return "\n".join(f"{folder.name}:\n{broker.said}" for folder, broker in self.running.items())

    def stop(self) -> None:
        """All that still run end cleanly."""
        self._stack.close()
        self.running.clear()
        self._proxies.clear()

    # -- what is done to them --------------------------------------------------------------------------------

    def hurt(self) -> str:
        """One thing, to one of them; returns what."""
        name = self._chance.choice(
            ("kill_slave", "kill_master", "suspend_slave", "suspend_master", "cut", "slow", "silent", "swap")
        )
        getattr(self, f"_{name}")()
        return name

    def _a_slave(self) -> Served:
        return self._chance.choice(self.slaves)

    def _a_proxy(self) -> ProxyThread:
        return self._proxies[self._a_slave().folder]

    def _kill_slave(self) -> None:
        self._restart(self._a_slave())

    def _kill_master(self) -> None:
        self._restart(self.master)

    def _restart(self, broker: Served) -> None:
        broker.kill()
        time.sleep(self._chance.random())
        broker.start()

    def _suspend_slave(self) -> None:
        self._suspend(self._a_slave())

    def _suspend_master(self) -> None:
        self._suspend(self.master)

    def _suspend(self, broker: Served) -> None:
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.1, 4.0))
        os.kill(broker.pid, signal.SIGCONT)

    def _cut(self) -> None:
        for _ in range(self._chance.randrange(1, 6)):
            self._a_proxy().cut()
            time.sleep(self._chance.random() / 3)

    def _slow(self) -> None:
        proxy = self._a_proxy()
        proxy.set(pause_s=0.01, largest=400)
        time.sleep(self._chance.uniform(0.5, 3.0))
        proxy.set(pause_s=0.0, largest=1 << 16)

    def _silent(self) -> None:
        """Longer than silence is borne, at times."""
        proxy = self._a_proxy()
        proxy.set(pause_s=3600.0)
        time.sleep(self._chance.uniform(0.5, 5.0))
        proxy.set(pause_s=0.0)
        proxy.cut()

    def _swap(self) -> None:
        self._a_proxy().swap(self._chance.random(), self._chance.uniform(0.0, 2.0))

    # -- losing the master -----------------------------------------------------------------------------------

    def lose_the_masters_disk(self) -> None:
        self.master.kill()
        shutil.rmtree(self.master_folder)

    def promote(self) -> Path:
        """As the how-to says: all stop, and the slave with the longest log goes on as master. Returns its folder."""
        lost = self.master_folder
        self.stop()
        self.master_folder = max(
            (each for each in self._folders if each != lost), key=lambda each: len(log_on_disk(each))
        )
        self.start()
        return self.master_folder


def bodies_in(folder: Path) -> Iterator[bytes]:
    """All messages of the topic, as its queues have them."""
    with MessageStore.open(folder, Settings.dev(), read_only=True) as store:
        for queue in (each for each in store.queues if each.topic == TOPIC):
            at = queue.min_offset
            while (page := store.get(TOPIC, queue.queue_id, at)).count:
                yield from (message.body for message in page.messages)
                at = page.next_begin_offset


def nothing_is_lost(folder: Path, acknowledged: list[bytes]) -> None:
    """Asserts that a store has what was acknowledged, and nothing twice."""
    held = Counter(bodies_in(folder))
    lost = [body[:30] for body in acknowledged if body not in held]
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged messages are lost, as {lost[:5]}"
    doubled = [body[:30] for body, count in held.items() if count > 1]
    assert not doubled, f"{len(doubled)} messages are there twice, as {doubled[:5]}"
