"""A deletion in a tail that is cut, or lost, did not happen there: the replica serves what its new master stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stores import StoreHome

from penstock.format.checkpoint import Checkpoint
from penstock.store import BrokerRole, Message, MessageStore, Settings
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.replication.tail_cut import CutPlan, prepare_cut

OLD = [b"old %d" % number for number in range(4)]
NEW = [b"new %d" % number for number in range(5)]
FILE = 64 << 10


class Replica:
    """A store of a sync set, which is opened as a slave."""

    def __init__(self, home: StoreHome) -> None:
        self.home = home
        self.open()

    def open(self) -> MessageStore:
        settings = Settings.dev(broker_role="SLAVE", mapped_file_size_commit_log=FILE)
        self.store = MessageStore.open(self.home.path, settings, clock=self.home.clock, in_sync_set=True)
        return self.store

    def lead(self, epoch: int) -> MessageStore:
        """Makes it the master, which waits for no other replica."""
        self.store.change_role(Role(BrokerRole.SYNC_MASTER, epoch))
        self.store.require_replicas(frozenset())
        return self.store

    def follow(self, master: Replica) -> None:
        """Receives all that it lacks of the master's log, and learns that it is confirmed."""
        replica = self.store.replica_log
        assert replica is not None
        if self.store.epochs.entries != master.store.epochs.entries:
            self.store.roles.follow_epochs(master.store.epochs.entries)
        for file in master.store.log.queue.files:
            begin = max(self.end - file.from_offset, 0)
            if begin < file.wrote:
                replica.append(file.from_offset + begin, bytes(file.map.view[begin : file.wrote]))
        self.store.flush()
        self.store.watermarks.confirm(master.end)
        self.store.catch_up()

    def plan_cut(self, offset: int) -> None:
        """Opens it again as a slave, which plans a cut, and closes it."""
        self.store.close()
        prepare_cut(self.open(), CutPlan(offset, "10.0.0.8:10912", 2, "epoch 2 began there"))
        self.store.close()

    def cut(self, offset: int) -> None:
        """Opens it again as a slave, twice: it plans a cut, and carries it out."""
        self.plan_cut(offset)
        self.open()
        assert self.end == offset

    @property
    def end(self) -> int:
        return self.store.watermarks.appended

    def bodies(self, topic: str) -> list[bytes]:
        return self.home.bodies(self.store, topic)

    def note(self) -> dict[str, Any]:
        path = self.home.path / "penstock" / "deleted_topics.json"
        return json.loads(path.read_text())["content"] if path.exists() else {}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    """A master of epoch 1, and a slave that has its whole log. Both have OLD in the topic A."""
    master, slave = Replica(StoreHome(tmp_path / "master")), Replica(StoreHome(tmp_path / "slave"))
    master.lead(1)
    put_all(master, OLD)
    slave.follow(master)
    yield master, slave
    for each in (master, slave):
        each.store.close()


def put_all(master: Replica, bodies: list[bytes], topic: str = "A") -> list[int]:
    """Puts messages, and returns their queue offsets."""
    results = [master.store.put(Message(topic, body, keys="key")) for body in bodies]
    assert all(result.ok for result in results)
    master.store.catch_up()
    return [result.queue_offset for result in results]


def put_tail(master: Replica, count: int = 20) -> None:
    """Puts messages of the topic B that no slave has."""
    put_all(master, [b"unreplicated" * 10] * count, "B")


def forget_nothing(path: Path) -> None:
    pass


def lose_note(path: Path) -> None:
    (path / "penstock" / "dispatched.json").unlink(missing_ok=True)


@pytest.mark.parametrize("harm", [forget_nothing, lose_note])
def test_a_topic_that_was_deleted_in_the_tail_is_served_as_its_new_master_serves_it(
    pair: tuple[Replica, Replica], harm: Callable[[Path], None]
) -> None:
    old, new = pair
    common = old.end
    put_tail(old)
    assert old.store.delete_topic("A")
    put_tail(old)
    new.lead(2)
    assert put_all(new, NEW) == [4, 5, 6, 7, 8]
    old.plan_cut(common)
    harm(old.home.path)
    old.open()
    assert old.store.deleted_topics() == {}
    old.follow(new)
    assert old.bodies("A") == OLD + NEW
    old.lead(3)
    assert old.bodies("A") == OLD + NEW
    assert put_all(old, [b"next"]) == [9]
    old.store.close()
    old.open()
    assert old.note() == {"topics": {}, "queues": []}


def test_a_topic_that_was_deleted_and_made_again_in_the_tail_goes_on_where_it_was(
    pair: tuple[Replica, Replica],
) -> None:
    old, new = pair
    common = old.end
    put_tail(old)
    assert old.store.delete_topic("A")
    assert put_all(old, [b"made again"] * 7)[0] == 0
    new.lead(2)
    put_all(new, NEW)
    old.cut(common)
    old.follow(new)
    assert old.bodies("A") == OLD + NEW


def test_a_deletion_before_the_cut_stays(pair: tuple[Replica, Replica]) -> None:
    old, new = pair
    assert old.store.delete_topic("A")
    deleted = old.store.deleted_topics()
    put_all(old, [b"between"], "C")
    common = old.end
    new.follow(old)
    put_tail(old)
    assert old.store.delete_topic("C")
    new.lead(2)
    put_all(new, [b"after"], "C")
    old.cut(common)
    assert old.store.deleted_topics() == deleted
    old.follow(new)
    assert old.bodies("A") == []
    assert old.bodies("C") == [b"between", b"after"]


def test_the_master_says_whether_a_deletion_just_where_the_log_is_cut_happened(pair: tuple[Replica, Replica]) -> None:
    old, new = pair
    common = old.end
    assert old.store.delete_topic("A")
    deleted = old.store.deleted_topics()
    assert deleted == {"A": common}
    put_tail(old)
    new.lead(2)
    old.cut(common)
    old.follow(new)
    assert old.store.deleted_topics() == {}
    old.store.watermarks.confirm(new.end)
    assert old.bodies("A") == OLD
    assert old.store.delete_as_master(deleted) == ["A"], "as it would if the new master knew of it"
    assert old.bodies("A") == []


def test_a_slave_forgets_a_deletion_that_it_copied_with_the_tail(pair: tuple[Replica, Replica], tmp_path: Path) -> None:
    """The master that deleted the topic is lost, and one that has less of its log follows it."""
    lost, new = pair
    slave = Replica(StoreHome(tmp_path / "third"))
    common = lost.end
    put_tail(lost)
    slave.follow(lost)
    assert lost.store.delete_topic("A")
    assert slave.store.delete_as_master(lost.store.deleted_topics()) == ["A"]
    assert slave.bodies("A") == []
    new.lead(2)
    put_all(new, NEW)
    slave.cut(common)
    slave.follow(new)
    assert slave.bodies("A") == OLD + NEW
    assert new.store.delete_topic("A")
    assert slave.store.delete_as_master(new.store.deleted_topics()) == ["A"], "a deletion by the new master"
    assert slave.bodies("A") == []
    slave.store.close()


def test_a_queue_that_restarted_in_the_tail_is_the_old_one_again(pair: tuple[Replica, Replica], tmp_path: Path) -> None:
    """A slave that has the messages of the new topic knows that its queue restarted, and not yet of the deletion."""
    lost, new = pair
    slave = Replica(StoreHome(tmp_path / "third"))
    common = lost.end
    slave.follow(lost)
    assert lost.store.delete_topic("A")
    assert put_all(lost, [b"made again"] * 2) == [0, 1]
    slave.follow(lost)
    assert slave.bodies("A") == [b"made again"] * 2
    assert slave.note() == {"topics": {}, "queues": [["A", 0, common]]}
    new.lead(2)
    put_all(new, NEW)
    slave.cut(common)
    assert slave.note()["queues"] == []
    slave.follow(new)
    assert slave.bodies("A") == OLD + NEW
    slave.store.close()


def test_of_a_topic_that_was_deleted_twice_only_the_second_deletion_is_forgotten(
    pair: tuple[Replica, Replica],
) -> None:
    old, new = pair
    assert old.store.delete_topic("A")
    assert put_all(old, [b"second 0", b"second 1"]) == [0, 1]
    common = old.end
    new.follow(old)
    put_tail(old)
    assert old.store.delete_topic("A")
    put_tail(old)
    new.lead(2)
    assert put_all(new, NEW)[0] == 2
    old.cut(common)
    old.follow(new)
    assert old.bodies("A") == [b"second 0", b"second 1", *NEW]


def test_a_kill_before_all_is_dispatched_again_loses_no_unit(pair: tuple[Replica, Replica], tmp_path: Path) -> None:
    """A slave of a sync set dispatches no further than its master has confirmed, and other queues are ahead."""
    old, new = pair
    put_all(old, [b"x" * 20_000] * 10)
    old.home.clock.now += 60_000
    put_all(old, [b"x" * 20_000] * 10, "C")
    common = old.end
    new.follow(old)
    put_tail(old)
    assert old.store.delete_topic("A")
    new.lead(2)
    old.plan_cut(common)
    checkpoint = old.home.path / "checkpoint"
    checkpoint.write_bytes(Checkpoint.unpack(checkpoint.read_bytes()).with_confirmed(0).pack())
    store = old.open()
    assert store.dispatcher.position == 0, "the master has not confirmed anything yet"
    store._notes.write(store._notes.snapshot())
    killed = Replica(old.home.copy_to(tmp_path / "killed"))
    assert not killed.store.report.clean_exit
    killed.follow(new)
    assert killed.bodies("A") == OLD + [b"x" * 20_000] * 10
    assert len(killed.bodies("C")) == 10
    killed.store.close()


def test_a_slave_whose_log_lost_its_end_serves_what_its_new_master_stores_there(pair: tuple[Replica, Replica]) -> None:
    """A power loss has removed the tail, so nothing is cut. The deletion was on disk already."""
    old, new = pair
    common = old.end
    put_tail(old)
    assert old.store.delete_topic("A")
    old.store.close()
    (path,) = old.home.log_files()
    old.home.write(path, common, bytes(path.stat().st_size - common))
    old.home.mark_crashed()
    new.lead(2)
    assert put_all(new, NEW) == [4, 5, 6, 7, 8]
    for _ in range(2):
        old.open()
        assert old.store.deleted_topics() == {"A": common}, "it counts up to where the log ends"
        old.store.close()
    old.open()
    old.follow(new)
    assert old.bodies("A") == NEW
    old.lead(3)
    assert put_all(old, [b"next"]) == [9]
