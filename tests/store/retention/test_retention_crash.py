"""A crash between two steps of a deletion: the next start serves a sound store, and the next pass resumes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from support.disks import MeasuredFiles
from support.stores import FILE_SIZE, PER_FILE, AgedStore, StoreHome

from penstock.store import DamagedRange, Settings
from penstock.store.audit import audit
from penstock.store.damage_and_quarantine import write_damage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = 9
MESSAGES = FILES * PER_FILE


class SteppedFiles(MeasuredFiles):
    """Calls `before_step` before each change of a folder, while `watched`."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = False
        self.steps: list[str] = []
        self.before_step: Callable[[int, Path], None] = lambda number, path: None

    def _step(self, what: str, path: Path) -> None:
        if self.watched:
            self.steps.append(f"{what} {path.parent.name}/{path.name}")
            self.before_step(len(self.steps), path)

    def unlink(self, path: Path) -> None:
        self._step("unlink", path)
        super().unlink(path)

    def sync_folder(self, folder: Path) -> None:
        self._step("sync", folder)
        super().sync_folder(folder)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", target)
        super().rename(source, target)


def prepared(home: StoreHome) -> tuple[AgedStore, SteppedFiles]:
    """Nine log files of two topics, with damage and a deleted topic to be forgotten; the first six are old."""
    disk = SteppedFiles()
    aged = AgedStore(home, disk)
    aged.fill(1, "D")
    aged.store.delete_topic("D")
    for _ in range(4):
        aged.fill(1, "T", 0)
        aged.fill(1, "T", 1)
    write_damage(disk, home.path / "penstock" / "damaged.json", [DamagedRange(200, 10, "BAD_CRC")])
    aged.age(80, files=6)
    return aged, disk


def assert_sound(aged: AgedStore, *, followed: bool = True) -> None:
    """Every record of the log is in its queue once and found by its key; nothing else is served.

    Until queues have `followed`, their minimum may be too low; reads pass over what is gone.
    """
    store = aged.store
    first = store.log.min_offset // FILE_SIZE
    expected: dict[int, list[int]] = {0: [], 1: []}
    for file in range(max(first, 1), FILES):
        queue_id, start = (file - 1) % 2, (file - 1) // 2 * PER_FILE
        expected[queue_id] += range(start, start + PER_FILE)
    for queue_id, numbers in expected.items():
        assert aged.numbers("T", queue_id) == numbers
        lowest = numbers[0] if numbers else 4 * PER_FILE
        assert store.min_offset("T", queue_id) in ((lowest,) if followed else range(lowest + 1))
        assert store.max_offset("T", queue_id) == 4 * PER_FILE
        for number in numbers:
            assert number in [int(hit.body[:6]) for hit in store.query("T", f"k{number}") if hit.queue_id == queue_id]
    assert store.topics() == ["T"]


def derived_files(home: StoreHome) -> list[int]:
    """How many files the two queues and the index have."""
    return [len(home.queue_files("T", 0)), len(home.queue_files("T", 1)), len(home.index_files())]


@pytest.mark.parametrize("left", ["killed", "cut off"])
def test_a_store_is_sound_after_a_crash_before_each_step_of_a_deletion(
    home: StoreHome, tmp_path: Path, left: str
) -> None:
    """The folder is copied before each step; `cut off` takes the note and the checkpoint away, too."""
    aged, disk = prepared(home)
    copies: list[StoreHome] = []
    disk.before_step = lambda number, path: copies.append(home.copy_to(tmp_path / f"copy{number}"))
    disk.watched = True
    assert len(aged.run_on_request()) == 6
    disk.watched = False
    assert_sound(aged)
    kinds = [step.split("/")[0] for step in disk.steps]
    assert kinds.index("unlink commitlog") < kinds.index("unlink 0") < kinds.index("unlink index"), disk.steps
    assert kinds.count("unlink commitlog") == 6
    for copy in copies:
        if left == "cut off":
            (copy.path / "penstock" / "dispatched.json").unlink(missing_ok=True)
            (copy.path / "checkpoint").unlink()
        again = AgedStore(copy)
        assert not again.store.report.clean_exit
        assert_sound(again)
        again.age(80, files=len(again.log_names) - 3)
        again.run_on_request()
        assert_sound(again)
        assert again.log_names == aged.log_names
        assert derived_files(copy) == derived_files(home)
        copy.close_all()


@pytest.mark.parametrize("kind", [errno.EIO, errno.ENOSPC])
def test_a_store_goes_on_after_any_step_of_a_deletion_has_failed(home: StoreHome, tmp_path: Path, kind: int) -> None:
    """The same deletion again and again, each time on a copy of the same store, and each time another step fails."""
    aged, _ = prepared(home)
    aged.store.close()
    failing = steps = 0

    def fail(number: int, path: Path) -> None:
        nonlocal steps
        steps += 1
        if steps == failing:
            raise OSError(kind, os.strerror(kind), str(path))

    while steps >= failing:
        steps, failing = 0, failing + 1
        copy = home.copy_to(tmp_path / f"copy{failing}")
        disk = SteppedFiles()
        aged = AgedStore(copy, disk)
        disk.before_step, disk.watched = fail, True
        cleaner = aged.retention.cleaner
        cleaner._requested = 2
        cleaner.work()
        assert bool(cleaner.problem) is (steps >= failing)
        assert_sound(aged, followed=False)
        cleaner.work()
        assert cleaner.problem == ""
        assert_sound(aged)
        aged.store.close()
        disk.watched = False
        aged.open()
        aged.run()
        assert_sound(aged)
        assert aged.log_names == [6, 7, 8]
        assert derived_files(copy) == [1, 2, 2]
        copy.close_all()
    assert failing > 20


def test_each_removal_is_synced_before_the_next(home: StoreHome) -> None:
    """Else a power cut could bring a file back and not the one behind it, which leaves a hole."""
    aged, disk = prepared(home)
    disk.watched = True
    aged.run_on_request()
    waiting: set[str] = set()
    for step in disk.steps:
        kind, _, path = step.partition(" ")
        folder, name = path.split("/")
        if kind == "unlink" and name.isdecimal():
            assert folder not in waiting, disk.steps
            waiting.add(folder)
        elif kind == "sync":
            waiting.discard(name)
    assert waiting == set()


def test_a_pass_that_was_cut_short_by_closing_goes_on_after_the_next_start(home: StoreHome) -> None:
    aged, _ = prepared(home)
    changes: dict[str, Any] = {"delete_commit_log_files_interval": 3_600_000}
    aged.store.close()
    aged.settings.update(changes)
    aged.open()
    aged.retention.cleaner._stopping.set()
    assert len(aged.run_on_request()) == 1
    aged.store.close()
    aged.settings["delete_commit_log_files_interval"] = 0
    aged.open()
    assert_sound(aged)
    aged.age(80, files=5)
    assert len(aged.run_on_request()) == 5
    assert_sound(aged)


def test_an_audit_finds_no_error_at_any_step_of_a_deletion(home: StoreHome, tmp_path: Path) -> None:
    """Units and keys of records that are gone are noted, and nothing else is wrong."""
    aged, disk = prepared(home)
    (home.path / "penstock" / "damaged.json").unlink()
    copies: list[StoreHome] = []
    disk.before_step = lambda number, path: copies.append(home.copy_to(tmp_path / f"copy{number}"))
    disk.watched = True
    aged.run_on_request()
    aged.store.delete_topic("T")
    disk.watched = False
    aged.store.close()
    for copy in (*copies, home):
        assert audit(copy.path, Settings.dev(**aged.settings)).errors == [], copy.path
        AgedStore(copy).store.close()
        assert audit(copy.path, Settings.dev(**aged.settings)).errors == [], copy.path
