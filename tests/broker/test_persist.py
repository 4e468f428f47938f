"""Saving tables: in a thread, in one piece, again if it failed, and nothing counts as saved before it is on disk."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome
from support.disks import FaultyFiles, refuse
from support.loopback import until

from penstock import task_supervision
from penstock.broker.broker import Broker
from penstock.broker.offsets import OffsetTable
from penstock.broker.settings import BrokerSettings
from penstock.broker.table_persistence import Persister, SavedTable
from penstock.errors import BadStore
from penstock.format.config_tables import ConsumerOffsets
from penstock.store import MessageStore, Settings
from penstock.store.config_files import ConfigFile
from penstock.task_supervision import Supervisor

if TYPE_CHECKING:
    from broker.conftest import Run


def tasks() -> Supervisor:
    return Supervisor(logging.getLogger("penstock.broker"))


class Saving:
    """An offset table with its file, on a disk that a test can make fail."""

    def __init__(self, folder: Path) -> None:
        self.disk = FaultyFiles()
        self.file = ConfigFile(self.disk, folder / "consumerOffset.json", ConsumerOffsets)
        self.table = OffsetTable(ConsumerOffsets())
        self.saved = SavedTable(self.file, self.table.snapshot, lambda: self.table.changes)

    def on_disk(self) -> dict[int, int]:
        found = self.file.read().table.offsets
        return found.get(("T", "g"), {})


def test_a_change_during_a_write_is_written_next(tmp_path: Path, run: Run) -> None:
    async def check() -> None:
        saving, persister = Saving(tmp_path), Persister(tasks())
        may_write, writing = threading.Event(), threading.Event()

        def wait(folder: Path) -> None:
            writing.set()
            assert may_write.wait(30)

        saving.disk.before_sync_folder = wait
        persister.add(saving.saved)
        saving.table.commit("g", "T", 0, 1)
        persister.due(saving.saved)
        await asyncio.to_thread(writing.wait, 30)
        saving.table.commit("g", "T", 0, 2)
        assert not saving.saved.is_saved
        may_write.set()
        await until(lambda: saving.saved.is_saved)
        assert saving.on_disk() == {0: 2}
        assert await persister.stop()

    run(check())


def test_a_write_that_fails_is_said_once_and_tried_again(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        saving, persister = Saving(tmp_path), Persister(tasks())
        tried = 0

        def count(folder: Path) -> None:
            nonlocal tried
            tried += 1
            refuse(errno.ENOSPC)

        saving.disk.before_sync_folder = count
        persister.add(saving.saved)
        saving.table.commit("g", "T", 0, 1)
        persister.due(saving.saved)
        await until(lambda: tried >= 3)
        assert not saving.saved.is_saved
        saving.disk.before_sync_folder = lambda folder: None
        await until(lambda: saving.saved.is_saved)
        assert await persister.stop()
        assert saving.on_disk() == {0: 1}

    monkeypatch.setattr(task_supervision, "FIRST_PAUSE_S", 0.001)
    with caplog.at_level(logging.INFO, "penstock.broker"):
        run(check())
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if line.endswith("retrying")]) == 1
    assert len([line for line in said if "works again" in line]) == 1


def test_an_unexpected_error_does_not_end_the_periodic_save(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        saving, persister = Saving(tmp_path), Persister(tasks())

        def fail(folder: Path) -> None:
            saving.disk.before_sync_folder = lambda folder: None
            raise MemoryError("planted")

        saving.disk.before_sync_folder = fail
        persister.add(saving.saved, 0.01)
        saving.table.commit("g", "T", 0, 1)
        await until(lambda: saving.saved.is_saved)
        assert saving.on_disk() == {0: 1}
        await persister.stop()

    run(check())
    assert "planted" in caplog.text


def test_a_broker_whose_tables_cannot_be_saved_still_closes_its_store(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async def fail(self: Persister) -> bool:
            raise MemoryError("planted")

        broker = Broker(MessageStore.open(home.path, Settings.dev()), BrokerSettings())
        await broker.start("127.0.0.1", 0)
        monkeypatch.setattr(Persister, "stop", fail)
        assert not await broker.stop()
        assert broker.store._closed
        assert not await broker.stop(), "a second call returns the same"

    run(check())


def test_what_was_not_saved_yet_is_saved_at_the_end(tmp_path: Path, run: Run) -> None:
    async def check() -> None:
        saving, persister = Saving(tmp_path), Persister(tasks())
        persister.add(saving.saved, 3600)
        saving.table.commit("g", "T", 0, 1)
        assert await persister.stop()
        assert saving.on_disk() == {0: 1}

    run(check())


def test_at_the_end_a_disk_that_refuses_is_said(tmp_path: Path, run: Run) -> None:
    async def check() -> None:
        saving, persister = Saving(tmp_path), Persister(tasks())
        persister.add(saving.saved)
        saving.table.commit("g", "T", 0, 1)
        saving.disk.before_sync_folder = lambda folder: refuse(errno.EROFS)
        assert not await persister.stop()

    run(check())


def test_offsets_are_saved_now_and_then(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(flush_consumer_offset_interval=10) as broker:
            broker.state.offsets.commit("g", "T", 0, 7)
            path = home.path / "config" / "consumerOffset.json"
            await until(lambda: path.exists() and '"T@g":{0:7' in path.read_text())

    run(check())


def test_a_table_that_cannot_be_read_keeps_the_broker_from_starting(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running():
            pass
        for name in ("consumerOffset.json", "consumerOffset.json.bak"):
            (home.path / "config" / name).write_text("garbage")
        with pytest.raises(BadStore, match=r"consumerOffset\.json"):
            async with home.running():
                pass

    run(check())
