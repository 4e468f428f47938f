"""The suite `store`: the embeddable store beside Apache RocketMQ's `DefaultMessageStore`.

Both sides have the same settings and get the same messages: one key, one tag, four queues, built anew each time.
"""

from __future__ import annotations

from pathlib import Path

from support.peers import Peer

from bench.harness import Scenario
from bench.java import BesideStore
from bench.store.arrow import LogToArrow, PutArrow
from bench.store.dispatch import Lag, Rebuild
from bench.store.get import Get
from bench.store.ground import HUNDRED, KILO, Ground
from bench.store.lists import PutLists
from bench.store.put import Put
from bench.store.query import QueryMany, QueryManyMessages, QuerySingle
from bench.store.sizes import FULL, QUICK
from bench.store.sync import SyncInFlight, SyncPut
from bench.store.walk import Walk


class StoreSuite(BesideStore):
    """See the module."""

    name = "store"
    summary = "The embeddable store: put, dispatch, get, query by key, walk."

    def need(self, quick: bool) -> int:
        return (QUICK if quick else FULL).disk_need

    def scenarios(self, folder: Path, quick: bool) -> list[Scenario]:
        ground = Ground(folder, QUICK if quick else FULL)
        return [
            *(Put(ground, body, threads) for threads in (1, 2) for body in (KILO, HUNDRED)),
            *(PutLists(ground, body) for body in (KILO, HUNDRED)),
            *(PutArrow(ground, body, built=built) for built in (True, False) for body in (KILO, HUNDRED)),
            SyncPut(ground, threads=1),
            SyncPut(ground, threads=16),
            SyncInFlight(ground),
            Lag(ground),
            Rebuild(ground),
            *(Get(ground, body, decoded=decoded) for decoded in (False, True) for body in (KILO, HUNDRED)),
            QuerySingle(ground),
            QueryMany(ground),
            QueryManyMessages(ground),
            *(Walk(ground, body, check_crc=crc) for crc in (True, False) for body in (KILO, HUNDRED)),
            *(LogToArrow(ground, body) for body in (KILO, HUNDRED)),
        ]

    def warm_up(self, peer: Peer, folder: Path, quick: bool) -> None:
        Ground(folder, QUICK if quick else FULL).warm_up(peer)
