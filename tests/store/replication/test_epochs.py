"""The epochs of a store: the file, and when an entry is written."""

from __future__ import annotations

import shutil
import time

import pytest
from support.stores import StoreHome, is_one_sentence

from penstock.errors import BadStore, CorruptData, StoreFailed
from penstock.store import BrokerRole, Message, MessageStore, PutStatus
from penstock.store.files.file_io import Files
from penstock.store.replication.epochs import (
    MAX_ENTRIES,
    EpochEntry,
    EpochFile,
    begun,
    check_entries,
    decode_entries,
    encode_entries,
    without_tail,
)
from penstock.store.replication.master_or_slave_role import Role

TWO = (EpochEntry(7, 7000), EpochEntry(8, 8000))
FILE = b"2\n773307083\n7-7000\n8-8000\n"


def test_the_file_is_that_of_rocketmq_5() -> None:
    assert encode_entries(TWO) == FILE
    assert decode_entries(FILE) == TWO
    assert decode_entries(b"2\n0\n7-7000\n8-8000\n") == TWO, "0: the checksum is not checked"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"2\n773307083\n7-7000\n8-8001\n",
        b"3\n773307083\n7-7000\n8-8000\n",
        b"2\n0\n8-8000\n7-7000\n",
        b"2\n0\n7-7000\n8-6000\n",
        b"1\n0\n0-5\n",
        b"1\n0\n7--5\n",
        b"1\n0\n7-99999999999999999999\n",
        b"1\n0\n7-7000 x\n",
        b"\xff\n0\n",
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_entries(data)


def test_entries_from_the_network_are_limited() -> None:
    with pytest.raises(CorruptData, match="too many"):
        check_entries((number + 1, number) for number in range(MAX_ENTRIES + 1))


def test_entries_are_replaced_and_cut() -> None:
    assert begun(TWO, 9, 9000) == (*TWO, EpochEntry(9, 9000))
    assert begun(TWO, 9, 8000) == (TWO[0], EpochEntry(9, 8000)), "nothing was written in epoch 8"
    assert begun(TWO, 9, 7500) == (TWO[0], EpochEntry(9, 7500)), "epoch 8 lies behind the end of this log"
    assert without_tail(TWO, 8001) == TWO
    assert without_tail(TWO, 8000) == TWO[:1]


def test_a_damaged_file_is_replaced_by_its_backup_and_a_start_without_either_says_so(home: StoreHome) -> None:
    epochs = EpochFile(Files(), home.path / "epochFileCheckpoint")
    home.path.mkdir()
    epochs.begin(1, 0)
    epochs.begin(2, 100)
    (home.path / "epochFileCheckpoint").write_bytes(b"garbage")
    again = EpochFile(Files(), home.path / "epochFileCheckpoint")
    again.load()
    assert again.entries == (EpochEntry(1, 0),)
    (home.path / "epochFileCheckpoint.bak").write_bytes(b"garbage")
    with pytest.raises(BadStore, match="restore the file") as error:
        home.open()
    assert is_one_sentence(str(error.value))
    with home.open(read_only=True):
        pass
    with pytest.raises(StoreFailed, match="knows epoch 2"):
        epochs.begin(2, 200)


def test_a_store_that_never_replicates_has_no_epochs(home: StoreHome) -> None:
    for _ in range(2):
        with home.open() as store:
            assert store.put(Message("orders", b"x")).ok
            assert store.role.epoch == 0
    assert not (home.path / "epochFileCheckpoint").exists()


def test_an_epoch_begins_with_the_first_append_and_not_with_an_open(home: StoreHome) -> None:
    with home.open() as store:
        assert store.roles.begin_epoch() == store.roles.begin_epoch() == 1
        assert store.put(Message("orders", b"x")).ok
        end = store.watermarks.appended
    for _ in range(2):
        with home.open() as store:
            assert store.role.epoch == 2
            assert store.epochs.entries == (EpochEntry(1, 0),)
    with home.open() as store:
        assert not store.log.appender.is_open
        assert store.put(Message("orders", b"x")).ok
        assert store.epochs.entries == (EpochEntry(1, 0), EpochEntry(2, end))
        assert store.log.appender.is_open
    with home.open(broker_role=BrokerRole.SLAVE) as store:
        assert store.role == Role(BrokerRole.SLAVE, 2)
        with pytest.raises(StoreFailed, match="this is a slave"):
            store.roles.begin_epoch()
        with pytest.raises(StoreFailed, match="knows epoch 2"):
            store.roles.follow_epochs((EpochEntry(1, 0),))
        store.roles.follow_epochs((EpochEntry(1, 0), EpochEntry(3, end)))
        assert store.role.epoch == 3


def test_a_put_is_refused_while_its_epoch_cannot_be_written(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    with home.open() as store:
        store.roles.begin_epoch()
        assert store.put(Message("orders", b"x")).ok
    with home.open() as store:

        def full(*_: object) -> None:
            raise StoreFailed("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(store.epochs, "_write", full)
            for _ in range(2):
                refused = store.put(Message("orders", b"y"))
                assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
                assert "the disk is full" in refused.reason
        assert store.put(Message("orders", b"z")).queue_offset == 1
        assert store.epochs.last == 2


def test_retention_keeps_the_epochs_of_deleted_files(home: StoreHome) -> None:
    with home.open(mapped_file_size_commit_log=4096, file_reserved_time=1) as store:
        store.roles.begin_epoch()
        for name in (BrokerRole.ASYNC_MASTER, BrokerRole.ASYNC_MASTER):
            for _ in range(40):
                assert store.put(Message("orders", b"x" * 300)).ok
            store.change_role(store.role.next(name))
        assert [entry.epoch for entry in store.epochs.entries] == [1, 2, 3]
        store.catch_up()
        store.flush()
        home.clock.now = int((time.time() + 36_000) * 1000)
        assert store.retention is not None
        while store.retention.cleaner.run(on_request=True):
            pass
        assert store.log.min_offset >= store.epochs.entries[1].start, "nothing of the first epoch is left"
        assert [entry.epoch for entry in store.epochs.entries] == [1, 2, 3]
        assert decode_entries(store.layout.epochs.read_bytes()) == store.epochs.entries


def test_a_replica_shows_no_more_after_a_start_than_was_visible_before(home: StoreHome) -> None:
    with home.open(broker_role=BrokerRole.SYNC_MASTER, slave_timeout=1) as store:
        store.roles.begin_epoch()
        assert store.put(Message("orders", b"one")).stored
        one = store.watermarks.appended
        store.require_replicas(frozenset({7}))
        assert store.put(Message("orders", b"two")).status is PutStatus.FLUSH_SLAVE_TIMEOUT
        end = store.watermarks.appended
        assert home.bodies(store, "orders") == [b"one"]
    with home.open(broker_role=BrokerRole.SLAVE) as store:
        assert store.report.clean_exit
        assert store.watermarks.visible == one
        assert home.bodies(store, "orders") == [b"one"]
        assert store.max_offset("orders", 0) == 1
        store.watermarks.confirm(one + 10)
        assert home.bodies(store, "orders") in ([b"one"], [b"one", b"two"]), "a limit inside a record loses nothing"
        store.watermarks.confirm(end)
        assert home.bodies(store, "orders") == [b"one", b"two"]
        assert store.dispatcher.skipped_bytes == 0
    with home.open(broker_role=BrokerRole.SYNC_MASTER, slave_timeout=1) as store:
        store.require_replicas(frozenset({7}))
        assert store.put(Message("orders", b"three")).stored
        store.change_role(store.role.next(BrokerRole.SLAVE))
        assert store.watermarks.visible == end, "a deposed master shows what it showed"
        store.change_role(store.role.next(BrokerRole.ASYNC_MASTER))
        assert home.bodies(store, "orders") == [b"one", b"two", b"three"], "a new master shows all that it has"


@pytest.mark.parametrize("in_sync_set", [True, False])
def test_a_replica_of_a_set_that_does_not_know_what_is_confirmed_shows_nothing(
    home: StoreHome, in_sync_set: bool
) -> None:
    """A master is killed before its checkpoint is written, with a record that no other replica has."""
    with home.open(broker_role=BrokerRole.ASYNC_MASTER) as store:
        store.roles.begin_epoch()
        assert store.put(Message("orders", b"one")).ok
        end = store.watermarks.appended
        settings = store.settings
    home.mark_crashed()
    (home.path / "checkpoint").unlink()
    shutil.rmtree(home.path / "consumequeue")
    slave = settings.with_changes(broker_role=BrokerRole.SLAVE)
    with MessageStore.open(home.path, slave, in_sync_set=in_sync_set) as store:
        assert home.bodies(store, "orders") == ([] if in_sync_set else [b"one"])
        store.watermarks.confirm(end)
        assert home.bodies(store, "orders") == [b"one"]
