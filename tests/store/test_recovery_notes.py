"""What a start makes of the small files beside the log: checkpoint, notes, `abort`, `lock`, config files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.stores import StoreHome, is_one_sentence

from penstock.errors import PenstockError
from penstock.format.checkpoint import Checkpoint
from penstock.store import Message, MessageStore, Settings, log_end_and_damage
from penstock.store.config_files import ConfigFiles
from penstock.store.dispatch_checkpoint import DispatchState, FileSizes, QueueNote, read_state
from penstock.store.files.file_io import Files
from penstock.store.recovery import Progress

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}
GARBAGE = {
    "zeros": bytes(300),
    "empty": b"",
    "ones": b"\xff" * 300,
    "another_document": b'{"a": 1}',
    "wrong_checksum": b'{"crc32": 5, "content": {"position": 1}}',
    "deep": b'{"crc32": 5, "content": ' + b"[" * 100_000,
    "cut": b'{"crc32": 5, "con',
}


@pytest.fixture
def before(home: StoreHome) -> dict[str, object]:
    with home.open(**SMALL) as store:
        for _ in range(150):
            home.clock.now += 1000
            home.put_numbered(store, 1)
        home.put_numbered(store, 3, topic="U")
        return home.state(store)


def note_path(home: StoreHome) -> Path:
    return home.path / "penstock" / "dispatched.json"


# -- the note of how complete queues and index are -----------------------------------------------------------------


def test_a_clean_close_notes_how_complete_everything_is(home: StoreHome, before: dict[str, object]) -> None:
    with home.open(**SMALL) as store:
        end = store.log.max_offset
        last = home.read_queue(store, "U")[-1]
        last_of_t = home.read_queue(store, "T")[-1]
    assert read_state(Files(), note_path(home)) == DispatchState(
        position=end,
        flushed=end,
        queues=[
            QueueNote("T", 0, 150, last_of_t.physical_offset + last_of_t.size),
            QueueNote("U", 0, 3, last.physical_offset + last.size),
        ],
        index_end=last.physical_offset,
        sizes=FileSizes(4096, 400, 50, 400),
    )


def test_a_start_that_finds_all_as_noted_dispatches_nothing(home: StoreHome, before: dict[str, object]) -> None:
    with home.open(**SMALL) as store:
        assert store.report.dispatched_from == store.report.log_end
        assert home.state(store) == before


@pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])
@pytest.mark.parametrize("kind", GARBAGE)
def test_a_note_that_is_garbage_makes_a_start_dispatch_the_whole_log(
    home: StoreHome, before: dict[str, object], kind: str, crashed: bool
) -> None:
    note_path(home).write_bytes(GARBAGE[kind])
    shutil.rmtree(home.path / "consumequeue" / "T")
    if crashed:
        home.mark_crashed()
    with home.open(**SMALL) as store:
        assert store.report.dispatched_from == 0
        assert home.state(store) == before
    assert read_state(Files(), note_path(home)) is not None


def test_a_store_that_rocketmq_wrote_has_no_note_and_starts_at_the_last_files(
    home: StoreHome, before: dict[str, object]
) -> None:
    shutil.rmtree(home.path / "penstock")
    with home.open(**SMALL) as store:
        assert store.report.dispatched_from >= store.report.walked_from > 0
        assert home.state(store) == before


def test_a_note_that_is_older_than_the_queues_does_no_harm(home: StoreHome, before: dict[str, object]) -> None:
    """RocketMQ went on with the store and wrote no note."""
    note = note_path(home).read_bytes()
    with home.open(**SMALL) as store:
        home.put_numbered(store, 100)
        after = home.state(store)
    for crashed in (False, True):
        note_path(home).write_bytes(note)
        if crashed:
            home.mark_crashed()
        with home.open(**SMALL) as store:
            assert home.state(store) == after


def test_a_store_without_keys_is_not_walked_as_a_whole_after_a_crash(home: StoreHome) -> None:
    """The index ends nowhere, and the note says that nothing is missing in it."""
    with home.open(**SMALL) as store:
        for _ in range(150):
            home.clock.now += 1000
            assert store.put(Message("T", b"no key" * 10)).ok
    home.mark_crashed()
    with home.open(**SMALL) as store:
        assert store.report.dispatched_from == store.report.walked_from > 0


# -- the checkpoint ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [bytes(4096), b"", b"\xff" * 100], ids=["zeros", "empty", "short"])
def test_without_a_checkpoint_the_note_says_where_to_begin(
    home: StoreHome, before: dict[str, object], content: bytes
) -> None:
    """rocketmq#1258, alibaba#350: a wrong checkpoint made recovery scan from the first file on, for hours."""
    (home.path / "checkpoint").write_bytes(content)
    home.mark_crashed()
    with home.open(**SMALL) as store:
        assert store.report.walked_from > 0
        assert home.state(store) == before


@pytest.mark.parametrize("noted", [True, False])
def test_a_checkpoint_ahead_of_the_log_vouches_for_nothing(
    home: StoreHome, before: dict[str, object], noted: bool
) -> None:
    """The clock was set back, so files look older than the checkpoint though nothing of them was dispatched."""
    later = home.clock.now + 10**6
    (home.path / "checkpoint").write_bytes(Checkpoint(later, later, later).pack())
    if not noted:
        note_path(home).unlink()
        shutil.rmtree(home.path / "consumequeue")
    home.mark_crashed()
    with home.open(**SMALL) as store:
        assert (store.report.walked_from == 0) is not noted
        assert home.state(store) == before


# -- names that are not what they should be ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["abort", "checkpoint", "lock", "penstock/dispatched.json", "penstock/damaged.json"])
def test_a_folder_where_a_file_should_be_is_named_in_one_sentence(
    home: StoreHome, before: dict[str, object], name: str
) -> None:
    path = home.path / name
    path.unlink(missing_ok=True)
    path.mkdir()
    for read_only in (False, True):
        if name == "lock" and read_only:
            continue
        with pytest.raises(PenstockError) as refused:
            home.open(read_only=read_only, **SMALL)
        assert str(path) in str(refused.value)
        assert is_one_sentence(str(refused.value))
    path.rmdir()
    if name == "penstock/dispatched.json":
        return
    with home.open(**SMALL) as store:
        assert home.state(store) == before


@pytest.mark.parametrize("content", [b"", b"4711\n", b"garbage" * 1000])
def test_whatever_is_in_abort_and_lock_does_not_matter(
    home: StoreHome, before: dict[str, object], content: bytes
) -> None:
    (home.path / "abort").write_bytes(content)
    (home.path / "lock").write_bytes(content)
    with home.open(**SMALL) as store:
        assert not store.report.clean_exit
        assert home.state(store) == before
    assert not (home.path / "abort").exists()


def test_config_files_of_zeros_do_not_stop_a_start(home: StoreHome, before: dict[str, object]) -> None:
    """rocketmq#3401, #6096: after a power loss they were zeros, and the broker was dead."""
    config = home.path / "config"
    config.mkdir()
    for name in ("topics", "consumerOffset", "delayOffset", "subscriptionGroup", "consumerFilter"):
        (config / f"{name}.json").write_bytes(bytes(100))
        (config / f"{name}.json.bak").write_bytes(b"{}")
    with home.open(**SMALL) as store:
        assert home.state(store) == before
    assert "its backup" in ConfigFiles(Files(), config).consumer_offsets.read().note


# -- stale bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])
def test_stale_records_behind_the_end_that_pass_their_crc_are_not_recovered(
    home: StoreHome, before: dict[str, object], crashed: bool
) -> None:
    """rocketmq#10017: a reused file held older records; their CRC fits, their position does not."""
    with home.open(**SMALL) as store:
        end = store.log.max_offset
    first = home.log_files()[0].read_bytes()
    stale = first[: int.from_bytes(first[:4], "big")] * 3
    home.write(home.log_files()[-1], end % 4096, stale)
    if crashed:
        home.mark_crashed()
    with home.open(**SMALL) as store:
        assert store.report.log_end == end
        assert home.state(store) == before
    assert [path.read_bytes() for path in home.kept()] == [stale]


# -- progress ------------------------------------------------------------------------------------------------------


def test_a_start_tells_how_far_it_is(home: StoreHome, before: dict[str, object]) -> None:
    (home.path / "checkpoint").unlink()
    note_path(home).unlink()
    shutil.rmtree(home.path / "consumequeue")
    home.mark_crashed()
    reported: list[Progress] = []
    MessageStore.open(home.path, Settings.dev(**SMALL), clock=home.clock, progress=reported.append).close()
    for phase in ("walking the log", "completing queues and index"):
        steps = [each for each in reported if each.phase == phase]
        assert [each.done for each in steps] == sorted(each.done for each in steps)
        assert steps[-1].done == steps[-1].total > 0
        assert len({each.total for each in steps}) == 1


def test_several_threads_find_what_one_finds(
    home: StoreHome, before: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in home.log_files()[1:3]:
        home.flip(path, 4)
    (home.path / "checkpoint").unlink()
    note_path(home).unlink()
    home.mark_crashed()
    with home.open(read_only=True, **SMALL) as view:
        alone = view.report
    monkeypatch.setattr(log_end_and_damage, "_MIN_FOR_THREADS", 0)
    with home.open(read_only=True, **SMALL) as view:
        assert view.report == alone
        assert [found.physical_offset for found in alone.damage] == [4096, 8192]


def test_the_note_is_a_document_that_people_can_read(home: StoreHome, before: dict[str, object]) -> None:
    content = json.loads(note_path(home).read_bytes())["content"]
    assert content["queues"][1][:3] == ["U", 0, 3]
