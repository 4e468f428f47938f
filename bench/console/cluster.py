"""A broker with many topics and groups, its console as a process, and a browser, started when first needed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.clients import ConsoleProcess

from bench.harness import BenchFailed
from penstock.client import Message, MessageQueue, sync
from penstock.format.config_tables import SubscriptionGroup
from penstock.testing import LocalBroker, broker

if TYPE_CHECKING:
    from browser.browsing import Browser


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is to show."""

    topics: int
    groups: int
    messages: int
    idle_s: float
    """How long nobody looks."""


FULL: Final = Sizes(topics=2000, groups=500, messages=2000, idle_s=60.0)
QUICK: Final = Sizes(topics=20, groups=5, messages=20, idle_s=1.0)


class Watched:
    """All of it; `close` ends it."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.sizes = sizes
        self._folder = folder
        self._broker: LocalBroker | None = None
        self._console: ConsoleProcess | None = None
        self._browser: Browser | None = None

    def console(self) -> ConsoleProcess:
        if self._console is None:
            self._broker = _filled(self._folder / "store", self.sizes)
            self._console = ConsoleProcess(self._broker.namesrv, folder=self._folder)
        return self._console

    def browser(self) -> Browser:
        """Chromium, that has come in. Raises BenchFailed where there is none."""
        if self._browser is None:
            for program in ("chromium", "chromedriver"):
                if shutil.which(program) is None:
                    raise BenchFailed(f"{program} is not installed")
            from browser.browsing import open_chromium

            console = self.console()
            self._browser = open_chromium(self._folder / "profile", None)
            self._browser.come_in(console)
        return self._browser

    def close(self) -> None:
        if self._browser is not None:
            self._browser.driver.quit()
        if self._console is not None:
            self._console.stop()
        if self._broker is not None:
            self._broker.close()


def _filled(folder: Path, sizes: Sizes) -> LocalBroker:
    names = [f"topic_{number:04}" for number in range(sizes.topics)]
    made = broker(dict.fromkeys(names, 4), store_path=folder).start()
    with sync.Producer("PID", made.namesrv) as producer:
        for number in range(sizes.messages):
            producer.send(Message(names[number % len(names)], b'{"number": %d}' % number, keys=f"key_{number}"))
    with made.admin() as admin:
        for number in range(sizes.groups):
            group = f"group_{number:03}"
            admin.groups.update(SubscriptionGroup(name=group))
            for topic in names[number % len(names) :][:2]:
                admin.offsets.queues(topic)
                admin.offsets.commit(group, MessageQueue(broker_name="broker-a", queue_id=0, topic=topic), 0)
    made.settle()
    return made
