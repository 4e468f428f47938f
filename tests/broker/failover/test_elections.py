"""Three brokers as processes, and etcd: a master that dies, sleeps or hands over loses nothing acknowledged."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from support.clusters import TOPIC, Load, wait_for
from support.elections import TTL_S, ElectedSet, elected_set

from penstock.store import MessageStore, Settings

pytestmark = pytest.mark.etcd


def bodies_of(brokers: ElectedSet) -> Counter[bytes]:
    """The bodies that the last master's store has, each with its number."""
    with MessageStore.open(brokers.brokers[0].folder, Settings.dev(), read_only=True) as store:
        found: Counter[bytes] = Counter()
        for queue in store.queues:
            if queue.topic != TOPIC:
                continue
            offset = queue.min_offset
            while offset < queue.max_offset:
                page = store.get(TOPIC, queue.queue_id, offset)
                found.update(each.body for each in page.messages)
                offset = page.next_begin_offset
        return found


def assert_nothing_lost(brokers: ElectedSet, load: Load) -> None:
    brokers.assert_same_logs()
    found = bodies_of(brokers)
    assert [body for body in load.acknowledged if found[body] != 1] == []


def test_a_master_that_is_killed_is_replaced_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with elected_set(tmp_path) as brokers:
        with Load(brokers.namesrv, "kill") as load:
            load.wait_for_more(50)
            for _ in range(2):
                killed = brokers.wait_for_master()
                killed.kill()
                brokers.wait_for_master(other_than=killed)
                load.wait_for_more(50)
                killed.start()
                brokers.wait_until_whole()
        assert_nothing_lost(brokers, load)


def test_a_master_that_sleeps_beyond_its_lease_is_replaced_and_follows_when_it_wakes(tmp_path: Path) -> None:
    with elected_set(tmp_path, failoverTtlMillis=TTL_S * 1000) as brokers:
        with Load(brokers.namesrv, "sleep") as load:
            load.wait_for_more(50)
            asleep = brokers.wait_for_master()
            os.kill(asleep.pid, signal.SIGSTOP)
            brokers.wait_for_master(other_than=asleep)
            load.wait_for_more(50)
            os.kill(asleep.pid, signal.SIGCONT)
            brokers.wait_until_whole()
            load.wait_for_more(50)
        assert_nothing_lost(brokers, load)


def test_a_switchover_moves_the_master_and_loses_nothing(tmp_path: Path) -> None:
    with elected_set(tmp_path) as brokers:
        with Load(brokers.namesrv, "switch") as load:
            load.wait_for_more(50)
            before = brokers.wait_for_master()
            brokers.switch_over()
            brokers.wait_for_master(other_than=before)
            load.wait_for_more(50)
            brokers.wait_until_whole()
        assert_nothing_lost(brokers, load)


def test_while_the_engine_is_away_the_master_goes_on_with_its_slaves(tmp_path: Path) -> None:
    with elected_set(tmp_path) as brokers:
        with Load(brokers.namesrv, "away") as load:
            load.wait_for_more(50)
            master, epoch = brokers.wait_for_master(), brokers.epoch
            for node in brokers.nodes:
                node.signal(signal.SIGSTOP)
            wait_for(lambda: "the engine does not answer" in master.said)
            until = time.monotonic() + 2 * TTL_S
            while time.monotonic() < until:
                load.wait_for_more(5)
            for node in brokers.nodes:
                node.signal(signal.SIGCONT)
            brokers.wait_until_whole()
            load.wait_for_more(50)
        assert brokers.master is master
        assert brokers.epoch == epoch
        assert_nothing_lost(brokers, load)


def test_a_slave_that_lost_a_page_of_its_log_copies_it_again_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with elected_set(tmp_path) as brokers:
        with Load(brokers.namesrv, "gap") as load:
            load.wait_for_more(100)
            master = brokers.wait_for_master()
            harmed = next(each for each in brokers.brokers if each is not master)
            harmed.kill()
            log = min((harmed.folder / "commitlog").iterdir())
            with log.open("r+b") as file:
                file.seek(4096)
                file.write(bytes(4096))
            harmed.start()
            wait_for(lambda: "a gap of" in harmed.said)
            brokers.wait_until_whole()
            load.wait_for_more(50)
        assert_nothing_lost(brokers, load)
