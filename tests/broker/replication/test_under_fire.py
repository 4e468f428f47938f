"""Two and three `penstock serve` processes under load, to which all kinds of things happen: what is acknowledged stays.

Each round ends with the loss of the master's disk and the promotion of a slave; the next one goes on with what is left,
and the old master comes back with an empty folder. `PENSTOCK_SEED` and `PENSTOCK_ROUNDS` choose other accidents, and
more of them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.clusters import Group, Load, Reader, log_on_disk, name_server, nothing_is_lost, wait_for
from support.effort import chosen_seed


def same(one: Path, other: Path, *verb: str) -> None:
    """Asserts that a verb finds no difference between two stores that nobody uses."""
    command = [sys.executable, "-m", "penstock.cli.main", *verb, str(one), str(other)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_masters_disk_is_lost_under_load_and_consumers_go_on(tmp_path: Path) -> None:
    with name_server() as namesrv:
        group = Group(tmp_path, namesrv, 2, chosen_seed())
        group.start()
        try:
            with Reader(namesrv) as reader:
                with Load(namesrv, "a") as load:
                    load.wait_for_more(200)
                    group.lose_the_masters_disk()
                slave = group.slaves[0]
                wait_for(lambda: reader.has(load.acknowledged), group.said)
                assert len(reader.got) == len(set(reader.got)), "the consumer got nothing twice"
            nothing_is_lost(slave.folder, load.acknowledged)
            group.promote()
            with Load(namesrv, "b") as more:
                more.wait_for_more(100)
            first, second = group.master_folder, group.slaves[0].folder
            wait_for(lambda: log_on_disk(first) == log_on_disk(second), group.said)
        finally:
            group.stop()
        for folder in (first, second):
            nothing_is_lost(folder, load.acknowledged + more.acknowledged)
        same(first, second, "pipeline", "diff", "--by", "bytes", "--master", "local[2]")


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [2, 3])
def test_whatever_happens_nothing_that_was_acknowledged_is_lost(tmp_path: Path, count: int) -> None:
    rounds = int(os.environ.get("PENSTOCK_ROUNDS", "30"))
    chosen = chosen_seed()
    acknowledged: list[bytes] = []
    with name_server() as namesrv:
        group = Group(tmp_path, namesrv, count, chosen)
        group.start()
        chance = random.Random(chosen)
        try:
            for turn in range(rounds):
                with Load(namesrv, f"r{turn}") as load:
                    done = []
                    for _ in range(chance.randrange(1, 4)):
                        time.sleep(chance.random())
                        done.append(group.hurt())
                    load.wait_for_more(50)
                    group.lose_the_masters_disk()
                acknowledged += load.acknowledged
                print(f"round {turn}: {', '.join(done)}; {len(load.acknowledged)} acknowledged, {dict(load.others)}")
                nothing_is_lost(group.promote(), acknowledged)
            with Load(namesrv, "last") as load:
                load.wait_for_more(50)
            acknowledged += load.acknowledged
            first, others = group.master_folder, [slave.folder for slave in group.slaves]
            wait_for(lambda: all(log_on_disk(each) == log_on_disk(first) for each in others), group.said)
        finally:
            group.stop()
        for each in others:
            nothing_is_lost(each, acknowledged)
            for way in ("bytes", "place"):
                same(first, each, "store", "diff", "--by", way)
