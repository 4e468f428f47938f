"""The suite `client`: CPU time for each message of a Python program and its broker, for two source trees.

    python -m bench client --before PATH --after PATH

Each turn is a fresh broker and a fresh program (`client_turn.py`) of one tree, the trees in turns. The broker is
`penstock serve` with an embedded name server, with asynchronous flush and four queues. *send* is `Producer.send` from
64 tasks, or from one, each of which waits for the report of its message; *backlog* is a consumer group that starts at
the first message. A turn is cut into slices, and its figure is the cheapest slice: other programs on the machine only
add CPU time, through cold caches. A ratio above 1 means that the tree after the change needs less. The trees may be
the same, to measure one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.compare import BEFORE, Tree
from bench.processes import PenstockBroker
from bench.run import OURS, SIZE_IDS, SIZE_NAMES, Goal, Row, Run, Task, no_peer
from bench.workspace import MIB, BenchFailed

_TURN = Path(__file__).parent / "client_turn.py"
_SETTINGS: dict[str, object] = {
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": 256 * MIB,
    "maxHashSlotNum": 100_000,
    "maxIndexNum": 2_000_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}


class Work(msgspec.Struct, frozen=True):
    """One kind of work: its name, its title, the size of a body, and the goal in microseconds, 0 for none."""

    kind: str
    title: str
    body: int
    goal: float = 0
    count: int = 12_800
    """Messages in a slice; a multiple of 64."""


WORK = {
    "send": (
        Work("send", "send, 64 in flight", 128, 12),
        Work("send", "send, 64 in flight", 1024, 18),
        Work("send-alone", "send, one in flight", 128, count=3_200),
        Work("send-batch", "send_batch of 64", 128),
    ),
    "backlog": (
        Work("push", "push, handler on the loop", 128, 6, 25_600),
        Work("push-batch", "push, lists of up to 32", 128, 2.5, 25_600),
        Work("push-sync", "push, handler in threads", 128, 12),
        Work("pull", "pull, pages of 32", 128, count=25_600),
    ),
}
PARTS = {"both": "client and broker", "client": "client", "broker": "broker"}
SLICES = 4


class ClientSuite:
    """See the module."""

    name = "client"
    summary = "CPU time of sends and of a backlog from Python, client and broker, for two source trees."
    sides = ("After", "Before")

    def __init__(self, before: Path, after: Path, changes: dict[str, object] | None = None) -> None:
        self._trees = {OURS: Tree.find(after, changes), BEFORE: Tree.find(before)}

    def need(self, quick: bool) -> int:
        return 2048 * MIB

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        return [
            Task(
                group,
                tuple(self._row(work, part) for part in PARTS),
                {side: partial(self._turn, tree, folder, work, quick) for side, tree in self._trees.items()},
            )
            for group, works in WORK.items()
            for work in works
        ]

    def _row(self, work: Work, part: str) -> Row:
        goal = Goal("at most", work.goal) if work.goal and part == "both" else None
        return Row(
            f"{work.kind}-{SIZE_IDS[work.body]}-{part}",
            f"{work.title}, {SIZE_NAMES[work.body]}: {PARTS[part]}",
            "us",
            goal,
            True,
            beside=BEFORE,
            figure=part,
        )

    def _turn(self, tree: Tree, folder: Path, work: Work, quick: bool) -> Run:
        broker = PenstockBroker(folder / "broker", {**_SETTINGS, **tree.changes}, tree.program(), tree.environment())
        count, slices = (640, 1) if quick else (work.count, SLICES)
        try:
            broker.start()
            order = {"do": work.kind, "namesrv": broker.namesrv, "pids": list(broker.pids), "body": work.body}
            done = subprocess.run(
                [sys.executable, "-P", str(_TURN), json.dumps({**order, "count": count, "slices": slices})],
                env={**os.environ, **tree.environment()},
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            broker.stop()
        if done.returncode:
            raise BenchFailed(f"a turn of {tree.src} failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
        answer: dict[str, Any] = json.loads(done.stdout)
        if not Path(answer["from"]).is_relative_to(tree.src):
            raise BenchFailed(f"a turn of {tree.src} ran {answer['from']}")
        figures = {part: seconds * 1e6 for part, seconds in answer["figures"].items()}
        return Run(figures, {"messages": count * slices}, answer["cpu"])

    def peer(self, folder: Path, quick: bool) -> AbstractContextManager[dict[str, str]]:
        return no_peer()

    def close(self) -> None:
        """Every turn ends its own processes."""
