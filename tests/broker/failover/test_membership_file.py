"""penstock/failover.json: the id of a replica, and whether it may have lost what it acknowledged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock.broker.failover import membership_file
from penstock.broker.failover.consensus_engine import State
from penstock.broker.failover.membership_file import Membership
from penstock.errors import BadStore
from penstock.store import Message, MessageStore, Settings
from penstock.store.replication.epochs import EpochEntry
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.settings import BrokerRole


def opened(path: Path, **settings: object) -> MessageStore:
    return MessageStore.open(path, Settings.dev(**settings))


def reboot(monkeypatch: pytest.MonkeyPatch, path: Path, boot_id: str) -> None:
    file = path / "boot_id"
    file.write_text(boot_id)
    monkeypatch.setattr(membership_file, "_BOOT_ID", file)


def crash(path: Path) -> None:
    """Leaves the store as a process that was killed does."""
    (path / "store" / "abort").write_bytes(b"")


def state(epoch: int, *sync: int, forced: int = 0) -> State:
    return State(epoch=epoch, master=sync[0], sync=sync, ids={"a": 1, "b": 2}, next_id=3, forced=forced)


def test_an_id_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert Membership(store).id == 0
        Membership(store).joined(3)
    with opened(tmp_path) as store:
        assert Membership(store).id == 3


@pytest.mark.parametrize(
    ("flush", "is_killed", "boots", "is_tainted"),
    [
        ("ASYNC_FLUSH", True, True, True),
        ("SYNC_FLUSH", True, True, False),
        ("ASYNC_FLUSH", False, True, False),
        ("ASYNC_FLUSH", True, False, False),
    ],
)
def test_a_replica_is_tainted_if_its_machine_lost_what_was_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, is_killed: bool, boots: bool, is_tainted: bool
) -> None:
    reboot(monkeypatch, tmp_path, "one")
    with opened(tmp_path / "store", flush_disk_type=flush) as store:
        membership = Membership(store)
        membership.joined(1)
    if is_killed:
        crash(tmp_path)
    else:
        membership.stopped()
    if boots:
        reboot(monkeypatch, tmp_path, "two")
    with opened(tmp_path / "store", flush_disk_type=flush) as store:
        assert Membership(store).is_tainted == is_tainted


def test_a_tainted_replica_stays_so_until_it_is_in_a_sync_set_of_a_later_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reboot(monkeypatch, tmp_path, "one")
    with opened(tmp_path / "store") as store:
        store.epochs.begin(4, 0)
        Membership(store).joined(2)
    crash(tmp_path)
    reboot(monkeypatch, tmp_path, "two")
    with opened(tmp_path / "store"):
        pass
    crash(tmp_path)
    with opened(tmp_path / "store") as store:
        assert Membership(store).is_tainted
    with opened(tmp_path / "store") as store:
        found = Membership(store)
        assert found.is_tainted
        for still in (state(4, 1, 2), state(5, 1)):
            found.seen(still)
            assert found.is_tainted
        found.seen(state(5, 1, 2))
        assert not found.is_tainted
        assert not Membership(store).is_tainted


@pytest.mark.parametrize("then", ["a tool opens it", "a start fails", "it flushes at once from now on"])
def test_the_loss_is_not_forgotten_because_of_what_happened_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    reboot(monkeypatch, tmp_path, "one")
    with opened(tmp_path / "store", flush_disk_type="ASYNC_FLUSH") as store:
        Membership(store).joined(2)
    crash(tmp_path)
    reboot(monkeypatch, tmp_path, "two")
    if then != "it flushes at once from now on":
        opened(tmp_path / "store").close()
    flush = "SYNC_FLUSH" if then == "it flushes at once from now on" else "ASYNC_FLUSH"
    with opened(tmp_path / "store", flush_disk_type=flush) as store:
        assert Membership(store).is_tainted


def test_a_stop_is_noted_only_by_the_last_owner(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        first = Membership(store)
        first.joined(2)
    with opened(tmp_path / "store") as store:
        second = Membership(store)
        before = store.layout.failover.read_bytes()
        first.stopped()
        assert store.layout.failover.read_bytes() == before, "another process has the store"
        assert second.id == 2


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("boots", [False, True])
@pytest.mark.parametrize("lost", ["the whole log", "its end"])
def test_a_replica_whose_log_is_lost_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, boots: bool, lost: str
) -> None:
    """The root folder is there, with id, epochs and checkpoint; the log's disk is another one."""
    reboot(monkeypatch, tmp_path, "one")
    logs = tmp_path / "logs"
    settings = {"flush_disk_type": flush, "broker_role": "SLAVE", "store_path_commit_log": str(logs)}
    path = tmp_path / "store"

    def in_set() -> MessageStore:
        return MessageStore.open(path, Settings.dev(**settings), in_sync_set=True)

    with in_set() as store:
        store.change_role(Role(BrokerRole.SYNC_MASTER, 3))
        store.require_replicas(frozenset())
        for _ in range(20):
            assert store.put(Message("orders", b"x" * 1000)).ok
        Membership(store).joined(2)
    assert not is_lacking(in_set())
    crash(tmp_path)
    if boots:
        reboot(monkeypatch, tmp_path, "two")
    if lost == "the whole log":
        shutil.rmtree(logs)
    else:
        (log,) = logs.iterdir()
        log.write_bytes(log.read_bytes()[:5000].ljust(log.stat().st_size, b"\0"))
    with in_set() as store:
        found = Membership(store)
        is_explained = flush == "ASYNC_FLUSH" and boots and lost == "its end"
        assert found.is_lacking != is_explained
        assert found.is_tainted == (flush == "ASYNC_FLUSH" and boots)
        found.seen(state(3, 1, 2))
        assert found.is_lacking != is_explained
        found.seen(state(4, 1, 2))
        assert not found.is_lacking


def is_lacking(store: MessageStore) -> bool:
    with store:
        return Membership(store).is_lacking


SEVENTH = (EpochEntry(1, 0), EpochEntry(7, 20_000))
"""The epochs of a master that has written 20,000 bytes before its seventh one."""


@pytest.fixture
def masters_log(tmp_path: Path) -> bytes:
    with opened(tmp_path / "master") as store:
        for _ in range(40):
            assert store.put(Message("orders", b"x" * 1000)).ok
        return bytes(store.log.queue.files[0].map.view[: store.watermarks.appended])


def as_slave(path: Path, **settings: object) -> MessageStore:
    settings = {"broker_role": "SLAVE", "flush_disk_type": "SYNC_FLUSH", **settings}
    return MessageStore.open(path / "slave", Settings.dev(**settings), in_sync_set=True)


def copy(store: MessageStore, masters: bytes, end: int | None = None) -> None:
    """Copies a master's log, whose epochs are SEVENTH, up to the last whole record before `end`."""
    store.roles.follow_epochs(SEVENTH)
    assert store.replica_log is not None
    store.replica_log.append(store.replica_log.end, masters[store.replica_log.end : end])
    store.replica_log.drop_partial()
    store.flush()


def lose_end(path: Path) -> None:
    (log,) = (path / "slave" / "commitlog").iterdir()
    log.write_bytes(log.read_bytes()[:5000].ljust(log.stat().st_size, b"\0"))


def test_a_replica_that_is_restarted_during_its_first_copy_lacks_nothing(tmp_path: Path, masters_log: bytes) -> None:
    with as_slave(tmp_path) as store:
        membership = Membership(store)
        membership.joined(2)
        copy(store, masters_log, 5000)
        membership.seen(state(7, 1))
    with as_slave(tmp_path) as store:
        assert store.epochs.last == 7
        assert 0 < store.watermarks.appended < SEVENTH[-1].start, "its epochs are ahead of its log"
        assert not Membership(store).is_lacking


def test_a_replica_that_is_restarted_during_a_long_catch_up_lacks_nothing(tmp_path: Path, masters_log: bytes) -> None:
    """It was in a sync set before, of an epoch whose start it has."""
    with as_slave(tmp_path) as store:
        membership = Membership(store)
        membership.joined(2)
        membership.seen(state(1, 1, 2))
        copy(store, masters_log, 5000)
    with as_slave(tmp_path) as store:
        assert not Membership(store).is_lacking


@pytest.mark.parametrize("writer", ["this version", "an older version"])
@pytest.mark.parametrize("boots", [False, True])
def test_a_replica_must_have_the_start_of_an_epoch_in_whose_sync_set_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masters_log: bytes, writer: str, boots: bool
) -> None:
    reboot(monkeypatch, tmp_path, "one")
    with as_slave(tmp_path, flush_disk_type="ASYNC_FLUSH") as store:
        membership = Membership(store)
        membership.joined(2)
        copy(store, masters_log)
        membership.seen(state(7, 1, 2))
        file = store.layout.failover
    if writer == "an older version":
        file.write_text(json.dumps({"id": 2, "bootId": "one", "running": "ASYNC_FLUSH"}))
    if boots:
        reboot(monkeypatch, tmp_path, "two")
    (tmp_path / "slave" / "abort").write_bytes(b"")
    lose_end(tmp_path)
    with as_slave(tmp_path, flush_disk_type="ASYNC_FLUSH") as store:
        found = Membership(store)
        assert store.confirmed_at_start == 0, "only the epoch can say so"
        assert found.is_lacking != boots, "the machine's memory explains a lost end"
        assert found.is_tainted == boots


def lacking(path: Path, masters: bytes) -> MessageStore:
    """Returns the store of replica 2, which was in the sync set of epoch 7, and has lost the end of its log."""
    with as_slave(path) as store:
        membership = Membership(store)
        membership.joined(2)
        copy(store, masters)
        membership.seen(state(7, 1, 2))
    lose_end(path)
    return as_slave(path)


def test_the_sync_set_of_the_same_epoch_does_not_prove_that_a_replica_has_copied_its_log_again(
    tmp_path: Path, masters_log: bytes
) -> None:
    """Its master may have written the set because of what it had before."""
    with lacking(tmp_path, masters_log) as store:
        found = Membership(store)
        for one in (state(7, 1, 2), state(7, 1), state(7, 1, 2)):
            found.seen(one)
            assert found.is_lacking
        found.seen(state(7, 1), has_confirmed=True)
        assert found.is_lacking, "it is not in the set"
        found.seen(state(7, 1, 2), has_confirmed=True)
        assert not found.is_lacking
        copy(store, masters_log)
    with as_slave(tmp_path) as store:
        assert not Membership(store).is_lacking


def test_a_replica_that_lacks_messages_is_not_whole_because_it_had_elected_itself(
    tmp_path: Path, masters_log: bytes
) -> None:
    """Its former process was elected, and ended before it led: the log has not seen that epoch."""
    with lacking(tmp_path, masters_log) as store:
        found = Membership(store)
        found.seen(state(8, 2))
        assert found.is_lacking
        found.seen(state(9, 2, forced=9))
        assert not found.is_lacking, "a person has accepted what it has"


def test_a_forced_replica_that_is_restarted_before_it_leads_can_still_be_elected(
    tmp_path: Path, masters_log: bytes
) -> None:
    with as_slave(tmp_path) as store:
        membership = Membership(store)
        membership.joined(2)
        copy(store, masters_log, 5000)
        membership.seen(state(8, 2, forced=8))
    with as_slave(tmp_path) as store:
        assert not Membership(store).is_lacking


def test_a_replica_whose_newest_epochs_were_cut_off_does_not_forget_in_which_it_was(
    tmp_path: Path, masters_log: bytes
) -> None:
    """A log that is cut at a gap loses the epochs behind it, and a crash before they are copied must not count."""
    with as_slave(tmp_path) as store:
        membership = Membership(store)
        membership.joined(2)
        store.watermarks.confirm(len(masters_log))
        copy(store, masters_log)
        membership.seen(state(7, 1, 2))
        store.epochs.cut(5000)
    lose_end(tmp_path)
    with as_slave(tmp_path) as store:
        assert store.epochs.last == 1
        found = Membership(store)
        assert found.is_lacking
        found.seen(state(7, 1, 2))
        assert found.is_lacking
        found.seen(state(8, 1, 2))
        assert not found.is_lacking


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        Membership(store).joined(3)
        store.layout.failover.write_text("{")
        with pytest.raises(BadStore, match=r"failover\.json"):
            Membership(store)
