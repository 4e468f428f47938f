"""A slave of a sync set that starts with a part of its log not confirmed: what its checkpoint says of its queues."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.format.checkpoint import Checkpoint
from penstock.format.queue_unit import UNIT_SIZE
from penstock.store import BrokerRole, Message, MessageStore, Settings

FILE = 16 << 10
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE,
    "mapped_file_size_consume_queue": UNIT_SIZE * 200,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


class Pair:
    """A master whose log has several files, and the store of its slave."""

    def __init__(self, folder: Path, *, with_index: bool) -> None:
        self.folder, self.now = folder, 1_700_000_000_000
        self.settings = Settings.dev(broker_role=BrokerRole.SLAVE, message_index_enable=with_index, **SMALL)
        self.confirmed = self.end = 0

    def open_slave(self, name: str = "slave") -> MessageStore:
        return MessageStore.open(self.folder / name, self.settings, clock=lambda: self.now, in_sync_set=True)

    def _put(self, store: MessageStore, topic: str, number: int) -> None:
        self.now += 1000
        assert store.put(Message(topic, b"%03d" % number + b"x" * 900, keys=f"{topic}{number}")).ok

    def replicate(self) -> None:
        """Has the slave hold the whole log, of which its consumers have seen the first messages only."""
        settings = self.settings.with_changes(broker_role=BrokerRole.ASYNC_MASTER)
        with (
            MessageStore.open(self.folder / "master", settings, clock=lambda: self.now) as master,
            self.open_slave() as slave,
        ):
            master.roles.begin_epoch()
            for number in range(4):
                self._put(master, "busy", number)
                self._put(master, "rare", number)
            self.confirmed = master.watermarks.appended
            for number in range(4, 7):
                self._put(master, "rare", number)  # the last ones of this queue
            for number in range(4, 30):
                self._put(master, "busy", number)
            self.end = master.watermarks.appended
            slave.roles.follow_epochs(master.epochs.entries)
            slave.watermarks.confirm(self.confirmed)
            assert slave.replica_log is not None
            for at in range(0, self.end, FILE):
                data = master.log.read(at, min(FILE, self.end - at))
                assert data is not None
                slave.replica_log.append(at, data)


@pytest.fixture(params=[True, False], ids=["with an index", "without an index"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Pair:
    made = Pair(tmp_path, with_index=request.param)
    made.replicate()
    return made


def test_the_checkpoint_of_a_start_covers_no_queue_that_waits_for_a_confirm(pair: Pair) -> None:
    with pair.open_slave() as slave:
        assert slave.dispatcher.position == pair.confirmed < pair.end
        checkpoint = Checkpoint.unpack((pair.folder / "slave" / "checkpoint").read_bytes())
        assert checkpoint.physic == slave.log.newest_timestamp
        seen = max(record.store_timestamp for record in slave.get("rare", 0, 0).messages)
        assert max(checkpoint.logics, slave.dispatcher.timestamp) <= seen
    with pair.open_slave() as slave:
        slave.watermarks.confirm(pair.end)
        slave.catch_up()
        assert slave.dispatcher.timestamp == slave.log.newest_timestamp
    with pair.open_slave() as slave:
        assert slave.dispatcher.timestamp == slave.log.newest_timestamp, "everything is confirmed"


def test_a_queue_that_was_confirmed_after_the_start_is_whole_after_a_power_loss(pair: Pair) -> None:
    with pair.open_slave() as slave:
        slave.watermarks.confirm(pair.end)
        slave.catch_up()
        assert slave.max_offset("rare", 0) == 7
        shutil.copytree(pair.folder / "slave", pair.folder / "lost")  # the power fails: nothing of the queue was synced
    queue = pair.folder / "lost" / "consumequeue" / "rare" / "0" / f"{0:020}"
    data = queue.read_bytes()
    queue.write_bytes(data[: 4 * UNIT_SIZE] + bytes(len(data) - 4 * UNIT_SIZE))
    with pair.open_slave("lost") as slave:
        slave.watermarks.confirm(pair.end)
        slave.catch_up()
        assert (slave.max_offset("rare", 0), slave.max_offset("busy", 0)) == (7, 30)
