"""`penstock serve` on a store that is there already, for the rows that are read through a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import PROJECT
from bench.children import end_child
from bench.harness import BenchFailed
from penstock.client.sync import Admin


class Served:
    """A broker with its name server, as a process. Ended by `stop`, by its id."""

    def __init__(self, store: Path, settings: Mapping[str, object]) -> None:
        """Returns when it listens. Raises BenchFailed if it does not start."""
        pairs = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        order = [sys.executable, "-m", "penstock.cli.main", "serve", "--store", str(store), "--console", "off"]
        order += ["--json", "--listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:0", "--log-level", "error", *pairs]
        self._process = subprocess.Popen(order, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise BenchFailed(f"penstock serve ended with status {self._process.wait()}")
        self.namesrv: str = json.loads(said)["namesrv"]

    def make_topics(self, topics: Sequence[str], queues: int) -> None:
        """A store that no broker has written to has messages of topics that no broker knows yet."""
        with Admin(self.namesrv) as admin:
            for topic in topics:
                admin.topics.create(topic, queues=queues)

    def stop(self) -> None:
        """Does nothing the second time."""
        end_child(self._process)
        if self._process.stdout is not None:
            self._process.stdout.close()
