"""The N-th call to the disk fails, for any N of one scenario, with EIO and with ENOSPC, once or for good.

Nothing is acknowledged that is not stored, writes stop after a failed sync, whoever asks gets one sentence, no thread
dies, and the next start on a disk that works again finds everything that was acknowledged. Stores into a map cannot
fail: a file is allocated before it is mapped, so that allocating is what fails.
"""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from support.disks import FailingFiles, UnsyncedFiles
from support.effort import in_parts
from support.messages import SEED, SMALL_FILES, Place, is_delayed, message, place_put, read_store
from support.stores import is_one_sentence

from penstock.errors import PenstockError
from penstock.format.config_tables import ConsumerOffsets
from penstock.store import MessageStore, Settings
from penstock.store.config_files import ConfigFiles

MESSAGES = 24


@pytest.fixture(autouse=True)
def dead_threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.ExceptHookArgs]:
    """A thread that dies says so here."""
    died: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    return died


class Scenario:
    """Open, put across several files, read, save offsets, close; whatever fails, it goes on as far as it can."""

    def __init__(self, path: Path, files: FailingFiles, flush: str, acknowledged: dict[int, Place]) -> None:
        self.path = path
        self.files = files
        self.settings = settings(flush)
        self.acknowledged = acknowledged
        self.sentences: list[str] = []
        self.was_open = False

    def run(self) -> None:
        try:
            store = MessageStore.open(self.path, self.settings, files=self.files)
        except PenstockError as error:
            self.sentences.append(str(error))
            return
        self.was_open = True
        try:
            first = max(self.acknowledged, default=-1) + 1
            for number in range(first, MESSAGES if not first else first + 6, 2):
                self._put(store, number)
            self._read(store)
            self._save_offsets(store)
        finally:
            store.close()

    def _put(self, store: MessageStore, number: int) -> None:
        log_failed = self.log_failed
        if is_delayed(number) or is_delayed(number + 1):
            answers = [store.put(message(number)), store.put(message(number + 1))]
        else:
            batch = store.put_many([message(number), message(number + 1)])
            answers = list(batch.results)
            self.sentences += [] if batch.ok else [batch.reason]
        for each, answer in enumerate(answers, number):
            if answer.ok:
                assert not log_failed, "a put was acknowledged after the log could not be synced"
                self.acknowledged[each] = place_put(each, answer)
            else:
                self.sentences.append(answer.reason)

    @property
    def log_failed(self) -> bool:
        failed = self.files.failed
        return failed is not None and failed[0] == "sync" and failed[1].parent.name == "commitlog"

    def _read(self, store: MessageStore) -> None:
        """What was acknowledged is there, or is not shown yet; it is never another one."""
        for number, place in self.acknowledged.items():
            record = store.look_up(place.physical_offset)
            assert record is not None
            assert record.body == message(number).body
            hits = store.query(place.topic, f"k{number}")
            assert [hit.physical_offset for hit in hits] in ([place.physical_offset], [])
            for read in store.get(place.topic, place.queue_id, place.queue_offset, 1).messages:
                assert read.body == message(number).body

    def _save_offsets(self, store: MessageStore) -> None:
        offsets = ConfigFiles(self.files, store.layout.config).consumer_offsets
        for count in (1, 2):
            try:
                offsets.write(ConsumerOffsets.from_json({"offsetTable": {"orders@group": {"0": count}}}))
            except PenstockError as error:
                self.sentences.append(str(error))

    def check(self) -> None:
        """What is true after it, and at the next start, on a disk that works."""
        for sentence in self.sentences:
            assert is_one_sentence(sentence), sentence
        failed = self.files.failed
        if self.log_failed:
            assert failed not in self.files.later, "a failed sync was tried again"
        if self.was_open and failed is not None and failed[0] == "sync":
            assert (self.path / "abort").exists(), "the exit counts as clean, though a sync failed"
        with MessageStore.open(self.path, self.settings, files=UnsyncedFiles()) as store:
            found = read_store(store)
        lost = {number: place for number, place in self.acknowledged.items() if found.get(number) != place}
        assert not lost, f"acknowledged and lost: {lost}"


def settings(flush: str) -> Settings:
    changes: dict[str, Any] = {
        **SMALL_FILES,
        "flush_disk_type": flush,
        "flush_interval_commit_log": 2,
        "flush_commit_log_least_pages": 0,
        "flush_interval_consume_queue": 2,
        "flush_consume_queue_thorough_interval": 4,
        "max_index_num": 20,
    }
    return Settings.dev(**changes)


def run_for_every_call(
    folder: Path,
    flush: str,
    kind: int,
    stays_broken: bool,
    died: list[threading.ExceptHookArgs],
    every: int,
    begin_with: tuple[Path, dict[int, Place]] | None = None,
) -> int:
    """Runs the scenario again and again, and lets a later call fail each time; returns how many there were."""
    for fails_at in range(SEED % every, 1_000_000, every):
        path = folder / str(fails_at)
        acknowledged: dict[int, Place] = {}
        if begin_with is not None:
            shutil.copytree(begin_with[0], path)
            acknowledged.update(begin_with[1])
        files = FailingFiles(fails_at, kind, stays_broken=stays_broken)
        scenario = Scenario(path, files, flush, acknowledged)
        try:
            scenario.run()
            scenario.check()
            assert not died, f"a thread died of {died[0].exc_value!r}"
        except BaseException:
            name, how = errno.errorcode[kind], "for good" if stays_broken else "once"
            print(f"{flush}, call {fails_at} fails {how} with {name}: {files.failed}, the store is in {path}")
            raise
        shutil.rmtree(path)
        if files.failed is None:
            return fails_at
    raise AssertionError("the scenario never ends")


EVERY = pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.torture), 4])
"""Every call in `make torture`, one in so many else."""


@EVERY
@pytest.mark.parametrize(
    ("flush", "kind", "stays_broken"),
    [
        pytest.param("SYNC_FLUSH", errno.EIO, False, id="SYNC_FLUSH, EIO once"),
        pytest.param("SYNC_FLUSH", errno.EIO, True, id="SYNC_FLUSH, EIO for good", marks=pytest.mark.rest),
        pytest.param("SYNC_FLUSH", errno.ENOSPC, False, id="SYNC_FLUSH, ENOSPC once", marks=pytest.mark.rest),
        pytest.param("ASYNC_FLUSH", errno.EIO, False, id="ASYNC_FLUSH, EIO once", marks=pytest.mark.rest),
        pytest.param("ASYNC_FLUSH", errno.ENOSPC, True, id="ASYNC_FLUSH, ENOSPC for good"),
    ],
)
def test_whichever_call_fails_nothing_acknowledged_is_lost(
    tmp_path: Path, flush: str, kind: int, stays_broken: bool, every: int, dead_threads: list[threading.ExceptHookArgs]
) -> None:
    assert run_for_every_call(tmp_path, flush, kind, stays_broken, dead_threads, every) > 100


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Place]]:
    """A store as a kill leaves it, and what was acknowledged in it."""
    folder = tmp_path_factory.mktemp("killed")
    scenario = Scenario(folder / "live", FailingFiles(1_000_000, errno.EIO), "ASYNC_FLUSH", {})
    with MessageStore.open(scenario.path, scenario.settings, files=UnsyncedFiles()) as store:
        for number in range(0, MESSAGES, 2):
            scenario._put(store, number)
        shutil.copytree(scenario.path, folder / "copy")
    return folder / "copy", scenario.acknowledged


@EVERY
@pytest.mark.parametrize("kind", in_parts([errno.EIO, errno.ENOSPC]), ids=["EIO", "ENOSPC"])
def test_whichever_call_of_a_recovery_fails_nothing_is_lost(
    tmp_path: Path,
    kind: int,
    every: int,
    killed: tuple[Path, dict[int, Place]],
    dead_threads: list[threading.ExceptHookArgs],
) -> None:
    assert run_for_every_call(tmp_path, "SYNC_FLUSH", kind, False, dead_threads, every, killed) > 100
