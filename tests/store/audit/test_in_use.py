"""A store in use is checked as far as its owner had come, and its owner's changes are never reported as errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from support.damage import SETTINGS, T0, SoundStore, some_messages

from penstock.store import Message, MessageStore
from penstock.store.audit import AuditReport, audit
from penstock.store.audit.plan import ROWS_IN_FLIGHT
from penstock.store.files.file_io import FileMap
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.queue_units_and_keys import MAX_RECORDS


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[MessageStore]:
    """A store of several files that is open, with everything dispatched."""
    ticks = itertools.count(T0, 250)
    with MessageStore.open(tmp_path / "store", SETTINGS, clock=lambda: next(ticks)) as store:
        for messages in some_messages():
            (store.put_many(messages) if isinstance(messages, list) else store.put(messages))
        store.catch_up()
        yield store


@pytest.fixture
def seen(owned: MessageStore) -> SoundStore:
    return SoundStore(owned.layout.root)


def kinds(report: AuditReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def test_all_that_was_dispatched_is_checked(owned: MessageStore, seen: SoundStore) -> None:
    report = audit(seen.folder, SETTINGS)
    assert report.figures.in_use
    assert (report.figures.log_end, report.figures.records) == (seen.end(), len(seen.records()))
    assert kinds(report) == {"config-missing"}


def test_a_store_that_has_nothing_yet_gives_nothing(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SETTINGS):
        report = audit(tmp_path, SETTINGS)
    assert report.figures.in_use
    assert kinds(report) == {"config-missing"}


def test_damage_in_the_log_is_found(owned: MessageStore, seen: SoundStore) -> None:
    spot = seen.middle()
    seen.write_log(spot.offset + spot.body_at, b"other")
    report = audit(seen.folder, SETTINGS)
    assert [(finding.kind, finding.messages) for finding in report.errors] == [("record-crc", 1)]
    assert report.damage[0].physical_offset == spot.offset


def test_a_wrong_unit_of_a_record_that_was_dispatched_long_ago_is_found(owned: MessageStore, seen: SoundStore) -> None:
    seen.write_unit(3, seen.unit(4))
    assert kinds(audit(seen.folder, SETTINGS)) == {"unit-repeated", "config-missing"}


def test_a_record_that_may_still_be_dispatched_is_only_a_note(
    owned: MessageStore, seen: SoundStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("penstock.store.audit.audit"), "_WAITS", 2)
    last = [spot for spot in seen.records() if spot.topic == "orders"][-1]
    seen.write_unit(last.queue_offset, bytes(20), "orders", last.queue_id)
    report = audit(seen.folder, SETTINGS)
    assert report.errors == []
    (note,) = [finding for finding in report.notes if finding.kind == "unsettled"]
    assert note.messages == 1


def test_a_unit_that_comes_while_it_is_waited_for_is_not_even_a_note(owned: MessageStore, seen: SoundStore) -> None:
    last = [spot for spot in seen.records() if spot.topic == "orders"][-1]
    unit = seen.unit(last.queue_offset, "orders", last.queue_id)
    seen.write_unit(last.queue_offset, bytes(20), "orders", last.queue_id)

    class Late(OverlayFiles):
        """The unit is there when the last log file is mapped for the fourth time."""

        opened = 0

        def open_map(self, path: Path) -> FileMap:
            if path == seen.log_files()[-1]:
                self.opened += 1
                if self.opened == 5:
                    seen.write_unit(last.queue_offset, unit, "orders", last.queue_id)
            return super().open_map(path)

    files = Late()
    assert kinds(audit(seen.folder, SETTINGS, files)) == {"config-missing"}
    assert files.opened >= 5


def test_records_that_are_not_dispatched_yet_are_not_checked(owned: MessageStore, seen: SoundStore) -> None:
    end, torn = seen.end(), seen.read_log(0, 90)
    seen.write_log(end, torn)
    report = audit(seen.folder, SETTINGS)
    seen.write_log(end, bytes(len(torn)))
    assert report.errors == []
    assert report.figures.log_end == end


def test_files_that_retention_deletes_meanwhile_are_not_errors(owned: MessageStore, seen: SoundStore) -> None:
    class Retention(OverlayFiles):
        """Deletes the oldest files once the log is being walked."""

        is_due = True

        def open_map(self, path: Path) -> FileMap:
            made = super().open_map(path)
            if self.is_due and path == seen.log_files()[1]:
                self.is_due = False
                seen.log_files()[0].unlink()
                seen.queue_files()[0].unlink()
                seen.queue_files(queue_id=1)[0].unlink()
            return made

    files = Retention()
    assert audit(seen.folder, SETTINGS, files).errors == []
    assert not files.is_due


def test_an_error_that_a_second_pass_does_not_find_is_not_reported(owned: MessageStore, seen: SoundStore) -> None:
    class Briefly(OverlayFiles):
        """Shows a file that is being created, once."""

        def __init__(self) -> None:
            super().__init__()
            self.looks = 0

        def names(self, folder: Path) -> list[str]:
            found = super().names(folder)
            if folder.name == "commitlog":
                self.looks += 1
                if self.looks == 1:
                    found.append("in the making")
            return found

    files = Briefly()
    assert audit(seen.folder, SETTINGS, files).errors == []
    assert files.looks == 2


def test_a_store_that_is_opened_while_it_is_checked_is_checked_again(tmp_path: Path) -> None:
    folder = SoundStore.make(tmp_path / "store").folder
    opened: list[MessageStore] = []

    class Opened(OverlayFiles):
        """Another process opens the store and puts a message while the index is audited."""

        def open_map(self, path: Path) -> FileMap:
            if path.parent.name == "index" and not opened:
                opened.append(MessageStore.open(folder, SETTINGS))
                assert opened[0].put(Message("orders", b"more", keys=("k",))).ok
                opened[0].catch_up()
            return super().open_map(path)

    try:
        report = audit(folder, SETTINGS, Opened())
    finally:
        opened[0].close()
    assert report.figures.in_use
    assert report.errors == []


def test_a_caller_that_owns_the_lock_may_say_that_nothing_is_being_written(
    owned: MessageStore, seen: SoundStore
) -> None:
    last = [spot for spot in seen.records() if spot.topic == "orders"][-1]
    seen.write_unit(last.queue_offset, bytes(20), "orders", last.queue_id)
    report = audit(seen.folder, SETTINGS, in_use=False)
    assert {finding.kind for finding in report.errors} == {"unit-missing"}
    assert not report.figures.in_use


def test_no_dispatcher_takes_more_records_in_a_step_than_an_audit_leaves_out() -> None:
    assert MAX_RECORDS <= ROWS_IN_FLIGHT
