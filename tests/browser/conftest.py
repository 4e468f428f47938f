"""A live broker with traffic, its console, and a real Chromium; skipped, with the reason, where there is none.

PENSTOCK_SCREENSHOTS names a folder that the pictures of the pages are written to.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.browsing import Browser, open_chromium
from support.clients import ConsoleProcess, fill_cluster, until_dead_letters

from penstock.client import Message, Producer, PushConsumer, ReceivedMessage
from penstock.testing import LocalBroker, broker


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalBroker]:
    topics = {"orders": 4, "oddities": 1, "refunds": 1, "payments": 8, "shipments": 4}
    with broker(topics, settings={"messageDelayLevel": "1s"}) as running:
        fill_cluster(running)
        until_dead_letters(running, "returns", 2)
        traffic = Traffic(running.namesrv)
        yield running
        traffic.stop()


class Traffic:
    """Somebody who sends to `payments` and `shipments` all the time, and a group that is too slow for that."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._enough = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send()))
        self._thread.start()

    async def _send(self) -> None:
        async def take(message: ReceivedMessage) -> None:
            await asyncio.sleep(0.15)  # slower than they come, so that its lag grows

        consuming = PushConsumer("billing", take, self._namesrv, subscriptions={"payments": "*"})
        async with consuming, Producer("PID", self._namesrv) as producer:
            number = 0
            while not self._enough.is_set():
                for _ in range(20 + 15 * (number % 3)):
                    number += 1
                    topic = "payments" if number % 3 else "shipments"
                    await producer.send(Message(topic, b'{"amount": %d}' % number, tags="paid", keys=f"p_{number}"))
                await asyncio.sleep(0.2)

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()


@pytest.fixture(scope="session")
def console(cluster: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    options = ("--store", str(cluster.store_path))
    with ConsoleProcess(cluster.namesrv, *options, folder=tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    pytest.importorskip("selenium")
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    pictures = os.environ.get("PENSTOCK_SCREENSHOTS", "")
    browser = open_chromium(tmp_path_factory.mktemp("profile"), Path(pictures).absolute() if pictures else None)
    yield browser
    browser.driver.quit()


@pytest.fixture
def page(chromium: Browser, console: ConsoleProcess) -> Browser:
    """The browser, logged in."""
    chromium.come_in(console)
    return chromium
