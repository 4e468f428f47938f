"""The suite `compare`: CPU time for each message of two source trees, before and after a change.

    python -m bench compare --before PATH --after PATH

Each turn is a fresh process with a tree's `src` on PYTHONPATH, the trees in turns. `put` counts the CPU time of the
whole process until dispatch is done; *calling thread* only that of the thread that puts. `get` reads pages of 32. For
`send` and `pull` the process is `penstock serve`, found by the tree's entry point, under the load of `bench.load`, with
64 in flight; only the broker's CPU time counts. A turn is cut into slices, and its figure is the cheapest slice: other
programs on the machine only add CPU time, through cold caches. A ratio above 1 means that the tree after the change
needs less.

With `--set NAME=VALUE` the second tree has other settings, and the trees may be the same: what does a setting cost?
Only public names are used, so the two trees may have other inner modules. Each needs its own compiled kernels.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.load import generate
from bench.processes import PenstockBroker
from bench.run import OURS, SIZE_IDS, SIZE_NAMES, Row, Run, Stopwatch, Task, no_peer
from bench.workspace import MIB, BenchFailed

BODIES = (128, 1024)
BEFORE = "before"
WINDOW = 64
SLICES = 8
_TURN = Path(__file__).parent / "turn.py"
_SETTINGS: dict[str, object] = {
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": 256 * MIB,
    "maxHashSlotNum": 100_000,
    "maxIndexNum": 2_000_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}


class Sizes(msgspec.Struct, frozen=True):
    """How much is done in a turn."""

    put: int
    passes: int
    """How often get reads all messages."""
    sent: int
    """In a slice; a multiple of a page of each queue, and at least 64 pages."""
    pulls: int
    """How often a slice is pulled."""


FULL = Sizes(put=200_000, passes=9, sent=12_800, pulls=8)
QUICK = Sizes(put=2_000, passes=1, sent=2_048, pulls=1)


class Tree(msgspec.Struct, frozen=True):
    """A source tree: its `src`, and how its `penstock` is started."""

    src: Path
    entry: str
    changes: dict[str, object] = {}
    """Settings of this tree alone."""

    @classmethod
    def find(cls, path: Path, changes: dict[str, object] | None = None) -> Tree:
        """From the tree's folder or its `src`. Raises BenchFailed if it is none, or has no compiled kernels."""
        src = path.resolve() if (path / "penstock").is_dir() else path.resolve() / "src"
        project = src.parent / "pyproject.toml"
        if not (src / "penstock").is_dir() or not project.is_file():
            raise BenchFailed(f"{path} is not a source tree of Penstock: it has no src/penstock or no pyproject.toml")
        if not any((src / "penstock").rglob("*.so")):
            raise BenchFailed(f"{src} has no compiled kernels; build them, or the plain twin is what is measured")
        return cls(
            src, tomllib.loads(project.read_text(encoding="utf-8"))["project"]["scripts"]["penstock"], changes or {}
        )

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.src)}

    def program(self) -> list[str]:
        """`penstock` of this tree."""
        module, _, function = self.entry.partition(":")
        return [sys.executable, "-P", "-c", f"import sys; from {module} import {function}; sys.exit({function}())"]


class CompareSuite:
    """See the module."""

    name = "compare"
    summary = "CPU time of put, get, send and pull for two source trees."
    sides = ("After", "Before")

    def __init__(self, before: Path, after: Path, changes: dict[str, object] | None = None) -> None:
        self._trees = {OURS: Tree.find(after, changes), BEFORE: Tree.find(before)}

    def need(self, quick: bool) -> int:
        return 2048 * MIB

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes, found = QUICK if quick else FULL, []
        for group, run, kinds in (
            ("store", self._store, {"put": "put", "put-caller": "put, calling thread", "get": "get, pages of 32"}),
            ("broker", self._broker, {"send": "send, 64 in flight", "pull": "pull, pages of 32, 64 in flight"}),
        ):
            for body in BODIES:
                rows = tuple(
                    Row(
                        f"{kind}-{SIZE_IDS[body]}",
                        f"{title}, {SIZE_NAMES[body]}",
                        "us",
                        None,
                        True,
                        beside=BEFORE,
                        figure=kind,
                    )
                    for kind, title in kinds.items()
                )
                sides = {side: partial(run, self._trees[side], folder, body, sizes) for side in self._trees}
                found.append(Task(group, rows, sides))
        return found

    def _store(self, tree: Tree, folder: Path, body: int, sizes: Sizes) -> Run:
        place = folder / "store"
        pairs = [f"{name}={value}" for name, value in {**_SETTINGS, **tree.changes}.items()]
        order = {"folder": str(place), "body": body, "count": sizes.put, "passes": sizes.passes, "settings": pairs}
        try:
            done = subprocess.run(
                [sys.executable, "-P", str(_TURN), json.dumps(order)],
                env={**os.environ, **tree.environment()},
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if done.returncode:
            raise BenchFailed(f"a turn of {tree.src} failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
        answer: dict[str, Any] = json.loads(done.stdout)
        if not Path(answer["from"]).is_relative_to(tree.src):
            raise BenchFailed(f"a turn of {tree.src} ran {answer['from']}")
        figures = {kind: seconds * 1e6 for kind, seconds in answer["figures"].items()}
        return Run(figures, {"got": answer["got"]}, answer["cpu"])

    def _broker(self, tree: Tree, folder: Path, body: int, sizes: Sizes) -> Run:
        broker = PenstockBroker(folder / "broker", {**_SETTINGS, **tree.changes}, tree.program(), tree.environment())
        count = sizes.sent
        try:
            broker.start()
            load = partial(generate, port=broker.port, count=count, window=WINDOW)
            load(do="send", topic="warm-up", body=body)
            load(do="pull", topic="warm-up", passes=1)
            sends, pulls = [], []
            for number in range(SLICES):
                with Stopwatch(*broker.pids) as took:
                    load(do="send", topic=f"bench-{number}", body=body)
                sends.append(took.cpu / count)
            for number in range(SLICES):
                with Stopwatch(*broker.pids) as took:
                    done = load(do="pull", topic=f"bench-{number}", passes=sizes.pulls)
                pulls.append(took.cpu / count / sizes.pulls)
        finally:
            broker.stop()
        figures = {"send": min(sends) * 1e6, "pull": min(pulls) * 1e6}
        return Run(figures, {"pulls": int(done["replies"])}, count * (sum(sends) + sizes.pulls * sum(pulls)))

    def peer(self, folder: Path, quick: bool) -> AbstractContextManager[dict[str, str]]:
        return no_peer()

    def close(self) -> None:
        """Every turn ends its own process."""
