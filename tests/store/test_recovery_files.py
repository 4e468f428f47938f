"""What a start makes of a store that lacks files, or has some that cannot be trusted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.errors import BadStore
from penstock.format.checkpoint import Checkpoint
from penstock.store import GetStatus, Message

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 40,
}
CLEAN_OR_NOT = pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])


# -- without some of its files -------------------------------------------------------------------------------


@CLEAN_OR_NOT
@pytest.mark.parametrize(
    "missing", ["consumequeue", "consumequeue/U", "consumequeue/T/0", "consumequeue/T/1", "index", "checkpoint"]
)
def test_what_can_be_built_from_the_log_is_built_when_it_is_missing(
    home: StoreHome, missing: str, crashed: bool
) -> None:
    with home.open(**SMALL) as store:
        for _ in range(60):
            home.clock.now += 1000
            home.put_numbered(store, 1, topic="U")
            home.put_numbered(store, 1, queue_id=0)
            home.put_numbered(store, 1, queue_id=1)
        before = home.state(store)
        assert len(store.log.queue.files) > 4
    path = home.path / missing
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if crashed:
        home.mark_crashed()
    store = home.open(**SMALL)
    assert home.state(store) == before
    assert store.put(Message("U", b"next")).queue_offset == 60
    assert store.put(Message("T", b"next", queue_id=1)).queue_offset == 60


def test_a_queue_that_is_missing_is_built_also_if_its_last_message_is_long_ago(home: StoreHome) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 30, topic="old")
        home.put_numbered(store, 200)
        before = home.state(store)
        assert len(store.log.queue.files) > 5
    shutil.rmtree(home.path / "consumequeue" / "old")
    store = home.open(**SMALL)
    assert home.state(store) == before
    assert store.put(Message("old", b"next")).queue_offset == 30


@CLEAN_OR_NOT
@pytest.mark.parametrize(
    "content",
    [None, bytes(4096), b"", bytes(100), b"\xff" * 4096, bytes(8192)],
    ids=["missing", "of_zeros", "empty", "too_short", "of_ones", "too_long"],
)
def test_a_checkpoint_that_says_nothing_or_nonsense_does_no_harm(
    home: StoreHome, content: bytes | None, crashed: bool
) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 120)
        before = home.state(store)
    checkpoint = home.path / "checkpoint"
    checkpoint.unlink()
    if content is not None:
        checkpoint.write_bytes(content)
    if crashed:
        home.mark_crashed()
    with home.open(**SMALL) as store:
        assert home.state(store) == before
    assert checkpoint.stat().st_size == 4096
    assert Checkpoint.unpack(checkpoint.read_bytes()).physic == home.clock.now


def test_a_checkpoint_keeps_what_rocketmq_5_wrote_behind_it(home: StoreHome) -> None:
    home.open().close()
    checkpoint = home.path / "checkpoint"
    home.write(checkpoint, 24, b"masterFlushedOff")
    with home.open() as store:
        home.put_numbered(store, 3)
    assert checkpoint.read_bytes()[24:40] == b"masterFlushedOff"


def test_a_checkpoint_from_the_future_hides_no_message(home: StoreHome) -> None:
    """The clock was wrong once: times later than the log's must not make recovery start too late."""
    with home.open(**SMALL) as store:
        home.put_numbered(store, 120)
        before = home.state(store)
    later = home.clock.now + 10**9
    (home.path / "checkpoint").write_bytes(Checkpoint(later, later, later).pack())
    home.mark_crashed()
    with home.open(**SMALL) as store:
        assert home.state(store) == before
    checkpoint = Checkpoint.unpack((home.path / "checkpoint").read_bytes())
    assert (checkpoint.physic, checkpoint.logics, checkpoint.index) == (home.clock.now,) * 3


def test_after_a_crash_the_walk_begins_where_the_checkpoint_says(home: StoreHome) -> None:
    with home.open(**SMALL) as store:
        for _ in range(200):
            home.clock.now += 1000
            home.put_numbered(store, 1)
        before = home.state(store)
    home.mark_crashed()
    with home.open(**SMALL) as store:
        assert home.state(store) == before
        assert store.report.walked_from > 0


# -- what is refused -----------------------------------------------------------------------------------------


def shorten(home: StoreHome) -> Path:
    home.log_files()[0].write_bytes(b"x" * 1000)
    return home.log_files()[0]


def empty_the_first(home: StoreHome) -> Path:
    home.log_files()[0].write_bytes(b"")
    return home.log_files()[0]


def add_foreign_file(home: StoreHome) -> Path:
    path = home.path / "commitlog" / "notes.txt"
    path.write_text("mine")
    return path


def add_foreign_file_to_queues(home: StoreHome) -> Path:
    path = home.path / "consumequeue" / "notes.txt"
    path.write_text("mine")
    return path


def add_foreign_file_to_index(home: StoreHome) -> Path:
    path = home.path / "index" / "notes.txt"
    path.write_text("mine")
    return path


def log_is_a_file(home: StoreHome) -> Path:
    shutil.rmtree(home.path / "commitlog")
    (home.path / "commitlog").write_bytes(b"x")
    return home.path / "commitlog"


HARMS = [
    shorten,
    empty_the_first,
    add_foreign_file,
    add_foreign_file_to_queues,
    add_foreign_file_to_index,
    log_is_a_file,
]


@pytest.mark.parametrize("harm", HARMS, ids=[harm.__name__ for harm in HARMS])
def test_a_store_that_cannot_be_trusted_is_refused_in_one_sentence_and_left_as_it_is(
    home: StoreHome, harm: Callable[[StoreHome], Path]
) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 120)
    culprit = harm(home)
    before = home.listing()
    with pytest.raises(BadStore) as refused:
        home.open(**SMALL)
    sentence = str(refused.value)
    assert str(culprit) in sentence
    assert "\n" not in sentence
    assert home.listing() == before


def test_other_file_sizes_than_the_settings_say_are_refused(home: StoreHome) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 10)
    before = home.listing()
    for changes in (
        {"mapped_file_size_commit_log": 8192},
        {"mapped_file_size_consume_queue": 200},
        {"max_index_num": 9},
    ):
        with pytest.raises(BadStore, match=r"expected \d+ bytes, found \d+ bytes"):
            home.open(**{**SMALL, **changes})
    assert home.listing() == before
    assert home.open(**SMALL).get("T", 0, 0).status is GetStatus.FOUND
