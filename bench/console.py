"""The suite `console`: what the web console costs while it is idle, and how long its pages take with many topics.

Idle rows read CPU time and memory of the console's process. Pages are timed in Chromium, from the request to the first
row of the table; without Chromium and its driver those rows fail with a sentence. The last rows send to one broker with
a console beside it and without, in turns: the console is started before a round with it and ended after, and gets no
requests meanwhile. RocketMQ's own console is another program and is not measured.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from support.clients import ConsoleProcess

from bench import broker as brokers
from bench.processes import PenstockBroker, resident_bytes
from bench.run import OURS, Goal, Row, Run, Stopwatch, Task, no_peer
from bench.workspace import GIB, BenchFailed
from penstock.client import Message, MessageQueue, sync
from penstock.format.config_tables import SubscriptionGroup
from penstock.testing import LocalBroker, broker

if TYPE_CHECKING:
    from browser.browsing import Browser

PAGES = {
    "overview": ("/", "broker-a"),
    "topics": ("/topics", "topic_0000"),
    "topic": ("/topics/topic_0000", "broker-a 0"),
    "groups": ("/groups", "group_0"),
    "group": ("/groups/group_000", "broker-a:0"),
    "messages": ("/messages?topic=topic_0000", "key_0"),
    "dead-letters": ("/dead-letters", "No group has any."),
    "store": ("/store", "broker-a"),
    "pipeline": ("/pipeline", "Start usage"),
}
"""A path and a text of its first row, by the page's name."""
_SETTLE_S = 3.0
_WITHOUT = "without"
_AS_FAST = Goal("ratio at least", 0.97)
"""A core has a thousand milliseconds in a second, and the console may take twenty of them."""


class Sizes(msgspec.Struct, frozen=True):
    """How much there is to show."""

    topics: int
    groups: int
    messages: int
    idle_s: float


FULL = Sizes(topics=2000, groups=500, messages=2000, idle_s=60.0)
QUICK = Sizes(topics=20, groups=5, messages=20, idle_s=1.0)


class ConsoleSuite:
    """See the module."""

    name = "console"
    summary = "The web console: idle, its pages with 2,000 topics and 500 groups, and the broker beside it."
    sides = ("Penstock", "without it")

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._beside: Beside | None = None

    def need(self, quick: bool) -> int:
        return GIB // 2 + _load(quick).disk_need // 2  # there is one broker, not two

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        cluster = self._cluster = Cluster(folder, QUICK if quick else FULL)
        beside = self._beside = Beside(folder / "beside", _load(quick))
        idle = (
            Row("idle-processor", "idle: processor time in a second", "ms", Goal("at most", 20), less_is_better=True),
            Row("idle-memory", "idle: resident memory", "bytes", Goal("at most", 120e6), True, figure="memory"),
        )
        pages = tuple(
            Row(f"page-{name}", f"page {path.partition('?')[0]}", "ms", Goal("at most", 1000), True, figure=name)
            for name, (path, _) in PAGES.items()
        )
        found = [Task("idle", idle, {OURS: cluster.idle}), Task("pages", pages, {OURS: cluster.pages})]
        for body, window in ((1024, 16), (128, 64)):
            row = brokers.send_row(body, window)
            name, title = f"beside-{row.name}", f"{row.title}, the console beside"
            row = msgspec.structs.replace(row, name=name, title=title, goal=_AS_FAST, beside=_WITHOUT)
            alone = partial(brokers.send, _load(quick), body, window, beside.broker)
            found.append(Task("beside", (row,), {OURS: partial(beside.with_console, alone), _WITHOUT: alone}))
        return found

    def peer(self, folder: Path, quick: bool) -> AbstractContextManager[dict[str, str]]:
        return no_peer()

    def close(self) -> None:
        """Ends brokers, console and browser, if a row has started them."""
        if self._cluster is not None:
            self._cluster.close()
        if self._beside is not None:
            self._beside.broker.stop()


def _load(quick: bool) -> brokers.Sizes:
    return brokers.QUICK if quick else brokers.FULL


class Beside:
    """One broker under load, and its console while it is wanted."""

    def __init__(self, folder: Path, sizes: brokers.Sizes) -> None:
        self._folder = folder
        self._process = PenstockBroker(folder / "broker", sizes.settings())
        self.broker = brokers.Warm(self._process, sizes)

    def with_console(self, run: partial[Run]) -> Run:
        """One round while the console is up."""
        with self._console():
            return run()

    @contextmanager
    def _console(self) -> Iterator[None]:
        """The console, up and with its first requests done."""
        self.broker.broker()
        with ConsoleProcess(self._process.namesrv, folder=self._folder) as console, console.client() as client:
            for path in ("/readyz", "/api/topics", "/api/groups"):
                client.get(path).raise_for_status()
            yield


class Cluster:
    """A broker with many topics and groups, its console as a process, and a browser; each started when first needed."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._sizes = sizes
        self._folder = folder
        self._broker: LocalBroker | None = None
        self._console: ConsoleProcess | None = None
        self._browser: Browser | None = None

    def idle(self) -> Run:
        """The console's process while it gets no requests."""
        sizes, pid = self._sizes, self.console().process.pid
        time.sleep(min(_SETTLE_S, sizes.idle_s))  # until its start is over
        with Stopwatch(pid) as took:
            time.sleep(sizes.idle_s)
        figures = {"value": took.cpu / took.seconds * 1000, "memory": float(resident_bytes(pid))}
        return Run(figures, {"topics": sizes.topics, "groups": sizes.groups}, took.cpu)

    def pages(self) -> Run:
        """From the request of each page until its first row is there; CPU time is the console's, for all pages."""
        browser, figures = self.browser(), {}
        with Stopwatch(self.console().process.pid) as took:
            for name, (path, wanted) in PAGES.items():
                begun = time.monotonic()
                browser.open(path)
                browser.until_text(wanted)
                figures[name] = (time.monotonic() - begun) * 1000
        return Run(figures, {"pages": len(PAGES)}, took.cpu)

    def console(self) -> ConsoleProcess:
        if self._console is None:
            self._broker = _filled(self._folder / "store", self._sizes)
            self._console = ConsoleProcess(self._broker.namesrv, folder=self._folder)
        return self._console

    def browser(self) -> Browser:
        """Chromium, logged in. Raises BenchFailed if it is not installed."""
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
