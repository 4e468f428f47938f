"""The suite `recovery`: from open to ready after a SIGKILL, and with queues and index lost, beside Apache RocketMQ.

Both sides open copies of the same files, which a writer of ours left when it was killed. Everything is in the page
cache: this measures the start, not the disk.
"""

from __future__ import annotations

from pathlib import Path

from support.peers import Peer

from bench.harness import Scenario
from bench.java import BesideStore
from bench.recovery.killed import FULL, QUICK, KilledStores
from bench.recovery.starts import Rebuild, Restart
from bench.store.ground import HUNDRED, KILO


class RecoverySuite(BesideStore):
    """See the module."""

    name = "recovery"
    summary = "From open to ready: after a SIGKILL, and with queues and index lost."

    def need(self, quick: bool) -> int:
        return (QUICK if quick else FULL).disk_need

    def scenarios(self, folder: Path, quick: bool) -> list[Scenario]:
        stores = KilledStores(folder, QUICK if quick else FULL)
        return [kind(stores, body) for kind in (Restart, Rebuild) for body in (KILO, HUNDRED)]

    def warm_up(self, peer: Peer, folder: Path, quick: bool) -> None:
        """Has Java start twice over a small store, so that its compiler has seen the walk and the dispatch."""
        stores = KilledStores(folder / "warm-up", QUICK)
        for kind in (Restart, Rebuild):
            kind(stores, HUNDRED).java(peer)
