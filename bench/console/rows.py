"""What is measured of the console."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar, Final

from bench.console.cluster import Watched
from bench.harness import Goal, Row, Run, Scenario

_PAGES: Final = {
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
_SETTLE_S: Final = 3.0


class Idle(Scenario):
    """The console's process while nobody looks."""

    group: ClassVar[str] = "idle"

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.rows = (
            Row(
                "idle-processor",
                "idle: processor time in a second",
                "ms",
                Goal("at most", 20.0),
                less_is_better=True,
            ),
            Row("idle-memory", "idle: resident memory", "bytes", Goal("at most", 120e6), less_is_better=True),
        )

    def ours(self) -> Run:
        sizes, pid = self._watched.sizes, self._watched.console().process.pid
        time.sleep(min(_SETTLE_S, sizes.idle_s))  # what starting has left to do
        before, begun = _processor_s(pid), time.monotonic()
        time.sleep(sizes.idle_s)
        used = (_processor_s(pid) - before) / (time.monotonic() - begun)
        figures = {"idle-processor": used * 1000, "idle-memory": float(_resident(pid))}
        return Run(figures, {"topics": sizes.topics, "groups": sizes.groups})


class Pages(Scenario):
    """From asking for a page until its first row is there."""

    group: ClassVar[str] = "pages"

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.rows = tuple(
            Row(f"page-{name}", f"page {path.partition('?')[0]}", "ms", Goal("at most", 1000.0), less_is_better=True)
            for name, (path, _) in _PAGES.items()
        )

    def ours(self) -> Run:
        browser, figures = self._watched.browser(), {}
        for name, (path, wanted) in _PAGES.items():
            begun = time.monotonic()
            browser.open(path)
            browser.until_text(wanted)
            figures[f"page-{name}"] = (time.monotonic() - begun) * 1000
        return Run(figures, {"pages": len(_PAGES)})


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
