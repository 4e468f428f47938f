"""The suite `pipeline`: jobs on Spark, pinned to one core and to two.

    pinned      a process with a Spark session that may use so many cores and no more (`process`)
    stores      the stores that are read
    scans       usage and verify; and how long a session takes to start, which no other row includes
    rebuild     queues and index from the log, beside one core, one process and RocketMQ
    dispatch    how long a message takes with external dispatch: a command of its own

Sessions are started once and stay warm: each job runs once before it counts. What the jobs read is in the page cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.peers import Peer

from bench.harness import Scenario
from bench.java import BesideStore
from bench.pipeline import rebuild, scans, stores
from bench.pipeline.pinned import Given, Pinned
from bench.store.ground import HUNDRED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PipelineSuite(BesideStore):
    """See the module. `spark`: a session for usage and verify, unpinned, instead of starting any."""

    name = "pipeline"
    summary = "Jobs on Spark: usage, verify and rebuild, pinned to one core and to two."
    beside = "Other side"

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._spark = spark
        self._sessions: dict[int, scans.Session] = {}
        self._rebuilt: rebuild.Stores | None = None

    def need(self, quick: bool) -> int:
        read = stores.QUICK if quick else stores.FULL
        return read.disk(read.messages) + (rebuild.QUICK if quick else rebuild.FULL).disk_need

    def scenarios(self, folder: Path, quick: bool) -> list[Scenario]:
        read = stores.JobStores(folder / "read", stores.QUICK if quick else stores.FULL)
        self._rebuilt = rebuild.Stores(folder / "rebuilt", rebuild.QUICK if quick else rebuild.FULL)
        for cores in (1, 2):
            given = self._spark is not None
            self._sessions[cores] = Given(self._spark) if given else Pinned(cores, folder / f"session-{cores}")
        return [*scans.scenarios(read, self._sessions, folder), *rebuild.scenarios(self._rebuilt)]

    def warm_up(self, peer: Peer, folder: Path, quick: bool) -> None:
        """Has Java rebuild a small store, so that its compiler has seen it."""
        small = rebuild.Stores(folder / "warm-up", rebuild.QUICK)
        rebuild.BesideJava(small, HUNDRED).java(peer)

    def close(self) -> None:
        """Ends the sessions that are ours."""
        for session in self._sessions.values():
            session.stop()
        if self._rebuilt is not None:
            self._rebuilt.close()
