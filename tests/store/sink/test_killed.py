"""A writer that is killed at any moment leaves the batch whole or not at all; brought again, it is stored once."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from support.arrow import SETTINGS, assert_sound, bodies, commit_rows, make_store, query_batch, stored, whole
from support.disks import CountedFiles, UnsyncedFiles, run_killed
from support.stores import eventually

from penstock.errors import BadStore
from penstock.store import Message, MessageStore
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.repair import repair
from penstock.store.sink import pending_start
from penstock.store.sink.journal import BatchMark, Intent, Journal, read_journal, write_journal, write_mark

ROWS = 50
PUTS = 5


@pytest.fixture(autouse=True)
def only_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="penstock.store")


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A store with a batch, closed."""
    path = tmp_path / "sound"
    make_store(path, UnsyncedFiles())
    commit_rows(path, query_batch(0), 15, UnsyncedFiles())
    return path


def kill_when(path: Path, put: int, *, dispatched: bool = False) -> None:
    """Commits batch 1 in a process of its own, which is killed before its put number `put`.

    If it is to be `dispatched`, not before a queue has something of the batch.
    """
    before = units(path)

    def kill_self(number: int) -> None:
        if number == put:
            if dispatched:
                eventually(lambda: units(path) != before, "nothing is dispatched")
            os.kill(os.getpid(), signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads, of which none of ours is left
        child = os.fork()
    if child == 0:
        try:
            commit_rows(path, query_batch(1), ROWS, UnsyncedFiles(), kill_self)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def units(path: Path) -> list[bytes]:
    """What the queues hold."""
    return [file.read_bytes() for file in sorted((path / "consumequeue").rglob("*")) if file.is_file()]


def assert_all_or_nothing(path: Path) -> None:
    """By a view first, which changes nothing, then by a start; then the batch is brought again."""
    shown = bodies(path, read_only=True)
    assert shown in (whole(0, 15), whole(0, 15) + whole(1, ROWS)), "half a batch is seen"
    started = bodies(path)
    assert started == shown, "a view shows something else than a start"
    assert_sound(path)
    already_stored = commit_rows(path, query_batch(1), ROWS, UnsyncedFiles()).already_stored
    assert already_stored == (len(started) > 15)
    assert bodies(path) == whole(0, 15) + whole(1, ROWS)
    assert_sound(path)


def copies(sound: Path, act: Callable[[CountedFiles, Path], object]) -> list[tuple[int, Path]]:
    """What is left of the store for each call to the disk before which its process was killed."""
    counted = CountedFiles()
    act(counted, shutil.copytree(sound, sound.parent / "counted"))
    found: list[tuple[int, Path]] = []
    for last in range(len(counted.calls)):
        path = shutil.copytree(sound, sound.parent / f"killed {last}")
        run_killed(lambda files, path=path: act(files, path), last)  # type: ignore[misc]
        found.append((last, path))
    return found


def test_killed_before_any_call_to_the_disk(sound: Path) -> None:
    killed = copies(sound, lambda files, path: commit_rows(path, query_batch(1), ROWS, files))
    assert len(killed) > 40
    pending = [pending_start(Files(), Layout.of(path, SETTINGS)) is not None for _, path in killed]
    assert any(pending), "some were killed within the append"
    assert not pending[0]
    assert not pending[-1]
    for _, path in killed:
        assert_all_or_nothing(path)
        shutil.rmtree(path)


@pytest.mark.parametrize("put", range(PUTS + 1))
def test_killed_between_two_puts(sound: Path, put: int) -> None:
    kill_when(sound, put)
    assert pending_start(Files(), Layout.of(sound, SETTINGS)) is not None
    assert_all_or_nothing(sound)


def test_the_log_of_a_killed_writer_is_what_it_was_before(sound: Path) -> None:
    before = {path.name: path.read_bytes() for path in (sound / "commitlog").iterdir()}
    kill_when(sound, PUTS, dispatched=True)
    assert {path.name: path.read_bytes() for path in (sound / "commitlog").iterdir()} != before
    with MessageStore.open(sound, SETTINGS, files=UnsyncedFiles()) as store:
        assert store.report.notes[0].startswith(f"batch 1 of query {query_batch(1).name} was not complete")
        assert len(store.report.notes) == 2, store.report.notes  # and that units pointed past the log's end
        assert store.report.torn_bytes == 0
        assert store.report.damage == []
    assert {path.name: path.read_bytes() for path in (sound / "commitlog").iterdir()} == before
    assert not (sound / "penstock" / "quarantine").exists(), "rows that come again need not be kept"


def test_a_batch_is_taken_back_after_a_clean_close_as_well(sound: Path) -> None:
    """As a commit does itself that failed, and could not roll back at once."""
    outcome = commit_rows(sound, query_batch(1), ROWS, UnsyncedFiles())
    layout, files = Layout.of(sound, SETTINGS), UnsyncedFiles()
    with MessageStore.open(sound, SETTINGS, read_only=True) as view:
        born = max(record.born_timestamp for record in stored(view))
    write_mark(files, layout, BatchMark(query_batch(0), 0, outcome.start, 15))
    write_journal(files, layout, Journal(Intent(query_batch(1), outcome.start, born, ROWS)))
    with MessageStore.open(sound, SETTINGS, files=files) as store:
        assert [" was not complete: " in note or "pointed past" in note for note in store.report.notes] == [True] * 2
    assert bodies(sound) == whole(0, 15)
    assert_sound(sound)


def test_killed_within_the_roll_back(sound: Path) -> None:
    kill_when(sound, PUTS)
    killed = copies(sound, lambda files, path: MessageStore.open(path, SETTINGS, files=files).close())
    assert len(killed) > 10
    for _, path in killed:
        assert bodies(path, read_only=True) == whole(0, 15)
        assert bodies(path) == whole(0, 15)
        assert_sound(path)
        shutil.rmtree(path)


def test_nothing_is_cut_with_settings_that_do_not_fit(sound: Path) -> None:
    kill_when(sound, PUTS)
    before = {path.name: path.read_bytes() for path in (sound / "commitlog").iterdir()}
    with pytest.raises(BadStore, match="another size than the settings say"):
        MessageStore.open(sound, SETTINGS.with_changes(mapped_file_size_commit_log=1 << 20))
    assert {path.name: path.read_bytes() for path in (sound / "commitlog").iterdir()} == before
    assert_all_or_nothing(sound)


def test_a_file_that_was_being_made_goes_with_the_others(sound: Path) -> None:
    kill_when(sound, PUTS)
    last = max((sound / "commitlog").iterdir())
    (last.parent / f"{int(last.name) + SETTINGS.mapped_file_size_commit_log:020d}").write_bytes(bytes(100))
    assert_all_or_nothing(sound)


def test_a_repair_rolls_back_first(sound: Path) -> None:
    kill_when(sound, PUTS - 1)
    before = {path: path.read_bytes() for path in sound.rglob("*") if path.is_file()}
    assert repair(sound, SETTINGS, dry_run=True).problems == []
    assert {path: path.read_bytes() for path in sound.rglob("*") if path.is_file()} == before
    assert repair(sound, SETTINGS).problems == []
    assert pending_start(Files(), Layout.of(sound, SETTINGS)) is None
    assert bodies(sound) == whole(0, 15)
    assert_sound(sound)


def test_killed_in_the_first_batch_of_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "new"
    kill_when(path, PUTS)
    for read_only in (True, False):
        with MessageStore.open(path, SETTINGS, read_only=read_only) as store:
            assert list(store.queues) == [] or all(queue.max_offset == 0 for queue in store.queues)
            assert store.log.max_offset == 0
    assert not commit_rows(path, query_batch(1), ROWS, UnsyncedFiles()).already_stored
    assert_sound(path)


def test_other_messages_behind_half_a_batch_are_never_cut(sound: Path) -> None:
    """RocketMQ knows no journal: started on such a store, it serves half a batch and stores behind it."""
    kill_when(sound, PUTS - 1)
    layout, files = Layout.of(sound, SETTINGS), UnsyncedFiles()
    journal = read_journal(files, layout)
    assert journal is not None
    layout.sink_journal.unlink()
    with MessageStore.open(sound, SETTINGS, files=files) as store:
        assert store.put(Message("orders", b"acknowledged")).ok
    write_journal(files, layout, journal)
    with MessageStore.open(sound, SETTINGS, files=files) as store:
        assert "messages were stored after it: nothing was truncated" in store.report.notes[0]
    found = bodies(sound)
    assert found == whole(0, 15) + whole(1, ROWS)[: (PUTS - 1) * 10] + [b"acknowledged"]
    assert_sound(sound)
