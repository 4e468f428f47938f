"""A writer is killed at random moments, again and again, and goes on in the same store.

After each kill: nothing that was acknowledged is lost, doubled or altered, nothing that a consumer saw is gone, queues
have no holes and each key is found once. `PENSTOCK_SEED` and `PENSTOCK_ROUNDS` choose other moments and more of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from failure.crash import kill_writer
from support import ROOT, TESTS
from support.effort import in_parts
from support.messages import SEED, SMALL_FILES, Place, read_store

from penstock.store import MessageStore, Settings

ROUNDS_PER_STORE = 5
ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "25"))
QUICK_ROUNDS = min(ROUNDS, ROUNDS_PER_STORE)
TORTURE_ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "1000"))
LONGEST_SECONDS = 60.0
"""How long a writer may take to note something; on a slow disk it is killed before."""
LINE_SIZE = 35
"""About what a line of a journal takes."""


class Nursery:
    """The process that forks writers."""

    def __init__(self, said: Path) -> None:
        self._said = said
        with said.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, kill_writer.__file__],
                env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT / 'src'}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def kill_when(self, moment: Callable[[], bool], seconds: float, order: dict[str, Any]) -> None:
        """Has an order carried out, and kills who carries it out, so many seconds after the moment has come."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        child = self._line()
        deadline = time.monotonic() + LONGEST_SECONDS
        while not moment() and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself, if all it does is recover
            os.kill(child, signal.SIGKILL)
        status = self._line()
        assert status == -signal.SIGKILL or (status == 0 and order["do"] == "recover"), self.complaints()
        assert "Traceback" not in self.complaints(), self.complaints()

    def _line(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def complaints(self) -> str:
        return self._said.read_text()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery") / "stderr")
    yield made
    made.close()


class Campaign:
    """One store that is written to and killed for several rounds."""

    def __init__(self, folder: Path, nursery: Nursery, seed: str, flush: str) -> None:
        self.path = folder / "store"
        self._journals = folder / "journals"
        self._journals.mkdir(parents=True)
        self.path.mkdir()
        self._nursery = nursery
        self._chance = random.Random(seed)
        self._seed = seed
        self._flush = flush
        self.acknowledged: dict[int, Place] = {}
        self.seen: dict[int, Place] = {}

    def settings(self) -> dict[str, Any]:
        """Sizes are those of the store; how often things happen changes from round to round."""
        chance = self._chance
        return {
            **SMALL_FILES,
            "flush_disk_type": self._flush,
            "pre_allocate_files": chance.random() < 0.5,
            "grow_log_files": chance.random() < 0.5,
            "flush_interval_commit_log": chance.choice((5, 50, 500)),
            "flush_interval_consume_queue": chance.choice((2, 20, 1000)),
            "flush_consume_queue_thorough_interval": chance.choice((1, 30, 60_000)),
        }

    def run(self, number: int) -> None:
        """Writes and kills; then perhaps recovers and kills again, as often as chance has it; then looks."""
        chance = self._chance
        order = {
            "do": "write",
            "path": str(self.path),
            "journals": str(self._journals),
            "round": number,
            "seed": f"{self._seed} {number}",
            "settings": self.settings(),
            "pause": chance.choice((0, 0.001, 0.004)),
            "session": chance.choice((0.03, 0.1, 0.5)),
        }
        answers = chance.choice((0, 0, 1, 10, 50, 150))  # 0: while it opens the store, or hardly has
        self._nursery.kill_when(lambda: self._noted(number) >= answers, chance.random() * 0.02, order)
        while chance.random() < 0.5:
            self._nursery.kill_when(lambda: True, chance.random() * 0.02, {**order, "do": "recover"})
        self._read_journals(number)
        # A view leaves everything as the kill did, so that the next writer meets it; an owner brings it in order.
        with MessageStore.open(self.path, Settings.dev(**order["settings"]), read_only=chance.random() < 0.5) as store:
            self._check(read_store(store))

    def _noted(self, number: int) -> int:
        """About how many messages the writer of a round has noted."""
        return sum(journal.stat().st_size for journal in self._journals.glob(f"{number}-*")) // LINE_SIZE

    def _read_journals(self, number: int) -> None:
        for journal in sorted(self._journals.glob(f"{number}-*")):
            for line in journal.read_text().split("\n")[:-1]:
                kind, name, topic, *rest = line.split()
                place = Place(topic, *map(int, rest))
                (self.acknowledged if kind == "A" else self.seen)[int(name)] = place

    def _check(self, found: dict[int, Place]) -> None:
        lost = {name: place for name, place in self.acknowledged.items() if found.get(name) != place}
        assert not lost, f"{len(lost)} acknowledged messages are lost or elsewhere: {sorted(lost.items())[:3]}"
        gone = {name: place for name, place in self.seen.items() if found.get(name) != place}
        assert not gone, f"{len(gone)} messages that a consumer saw are gone or elsewhere: {sorted(gone.items())[:3]}"


def run_rounds(folder: Path, nursery: Nursery, flush: str, seed: int, rounds: int, start: int = 0) -> None:
    """Rounds `start` to `rounds`; each `ROUNDS_PER_STORE` of them share a store."""
    acknowledged = seen = 0
    for first in range(start, rounds, ROUNDS_PER_STORE):
        name = f"{seed} {flush} {first}"
        campaign = Campaign(folder / str(first), nursery, name, flush)
        for number in range(first, min(first + ROUNDS_PER_STORE, rounds)):
            try:
                campaign.run(number)
            except BaseException:
                print(f"seed {name!r}, round {number}, store {campaign.path}")
                raise
        acknowledged += len(campaign.acknowledged)
        seen += len(campaign.seen)
        shutil.rmtree(folder / str(first))
    assert acknowledged > 2 * (rounds - start), "the writers hardly came to write anything"
    assert seen > rounds - start, "the consumers hardly came to read anything"


@pytest.mark.parametrize("rounds", in_parts([(0, QUICK_ROUNDS), (QUICK_ROUNDS, ROUNDS)]), ids=["quick", "rest"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_acknowledged_or_seen_is_lost_by_kills(
    tmp_path: Path, nursery: Nursery, flush: str, rounds: tuple[int, int]
) -> None:
    start, stop = rounds
    run_rounds(tmp_path, nursery, flush, SEED, stop, start)


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_acknowledged_or_seen_is_lost_by_a_thousand_kills(tmp_path: Path, nursery: Nursery, flush: str) -> None:
    run_rounds(tmp_path, nursery, flush, SEED + 1, TORTURE_ROUNDS)
