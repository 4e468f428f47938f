"""Deletion during reads: a reader keeps its file, a hung reader does not block deletion for ever, nothing crashes."""

from __future__ import annotations

import threading
import time

import pytest
from support.stores import FILE_SIZE, PER_FILE, AgedStore, StoreHome

from penstock.store import GetStatus

PATIENCE_MS = 120_000


@pytest.fixture
def aged(home: StoreHome) -> AgedStore:
    """Five log files of four messages, all old."""
    made = AgedStore(home)
    made.fill(5)
    made.age(80)
    return made


def test_a_file_that_is_read_stays_takes_no_new_readers_and_holds_the_pass_up(aged: AgedStore) -> None:
    second = aged.store.log.queue.files[1]
    assert second.acquire()
    assert len(aged.run_on_request()) == 1
    assert aged.run_on_request() == []
    assert aged.log_names == [1, 2, 3, 4]
    assert not second.acquire()
    assert aged.store.log.min_offset == 2 * FILE_SIZE
    assert aged.numbers() == list(range(2 * PER_FILE, 5 * PER_FILE))
    assert aged.found(range(20)) == list(range(2 * PER_FILE, 5 * PER_FILE))
    assert aged.store.look_up(FILE_SIZE) is None
    second.release()
    assert len(aged.run_on_request()) == 3
    assert aged.log_names == [4]


def test_a_hung_reader_loses_the_file_after_its_time_and_can_still_read_its_bytes(aged: AgedStore) -> None:
    first = aged.store.log.queue.files[0]
    before = bytes(first.map.view[:FILE_SIZE])
    assert first.acquire()
    view = first.map.view[:FILE_SIZE]
    assert aged.run_on_request() == []
    aged.home.clock.now += PATIENCE_MS - 1
    assert aged.run_on_request() == []
    aged.home.clock.now += 1
    aged.age(80)
    assert len(aged.run_on_request()) == 4
    assert aged.log_names == [4]
    assert first not in aged.store.log.queue.files
    assert bytes(view) == before, "the reader is none the wiser"
    view.release()
    first.release()
    with pytest.raises(ValueError, match="released"):
        first.map.view[0]
    assert aged.numbers() == list(range(4 * PER_FILE, 5 * PER_FILE))


def test_a_hung_file_is_tried_again_when_no_pass_is_due(home: StoreHome) -> None:
    aged = AgedStore(home, redelete_hanged_file_interval=300_000)
    aged.fill(3)
    aged.age(80)
    first = aged.store.log.queue.files[0]
    assert first.acquire()
    assert aged.run_on_request() == []
    home.clock.now += 299_999
    assert aged.run() == []
    home.clock.now += 1
    assert [gone.name for gone in aged.run()] == ["00000000000000000000"], "only this one: no pass was due"
    assert aged.log_names == [1, 2]
    first.release()


def test_a_queue_file_and_an_index_file_that_are_read_go_later(aged: AgedStore) -> None:
    units, table = aged.store.queues.find("T", 0).files.files[0], aged.store.index.files[0]
    assert units.acquire()
    assert table.acquire()
    assert len(aged.run_on_request()) == 4
    assert len(aged.home.queue_files("T")) == 2
    assert len(aged.home.index_files()) == 2
    assert aged.store.get("T", 0, 3).status is GetStatus.OFFSET_TOO_SMALL
    assert aged.found(range(20)) == list(range(4 * PER_FILE, 5 * PER_FILE))
    units.release()
    aged.run()
    assert len(aged.home.queue_files("T")) == 1, "although the log's minimum did not grow again"
    assert len(aged.home.index_files()) == 2
    aged.home.clock.now += PATIENCE_MS
    aged.run()
    assert len(aged.home.index_files()) == 1
    assert table.header.index_count == 11, "it can still be read"
    table.release()


def test_a_full_index_file_that_goes_before_it_was_synced_is_no_problem(aged: AgedStore) -> None:
    index = aged.store.index
    index._unsynced = list(index.files[:-1])
    aged.run_on_request()
    assert len(index.files) == 1
    assert index.sync(everything=True) > 0


class Reader(threading.Thread):
    """Does something over and over until stopped; records errors."""

    def __init__(self, act: object) -> None:
        super().__init__(daemon=True)
        self._act = act
        self._enough = threading.Event()
        self.rounds = 0
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._enough.is_set():
                self._act()  # type: ignore[operator]
                self.rounds += 1
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._enough.set()
        self.join(30)
        assert self.error is None, repr(self.error)
        assert self.rounds > 0


def test_reading_writing_and_deleting_go_on_side_by_side(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(2)
    store = aged.store
    statuses = set()

    def read_pages() -> None:
        offset = 0
        while True:
            page = store.get("T", 0, offset)
            statuses.add(page.status)
            for record in page.messages:
                assert int(record.body[:6]) == record.queue_offset
            if page.next_begin_offset <= offset:
                return
            offset = page.next_begin_offset

    def find_keys() -> None:
        lowest = store.min_offset("T", 0)
        for hit in store.query("T", f"k{lowest + 3}"):
            assert int(hit.body[:6]) == lowest + 3
        store.query_many("T", [f"k{number}" for number in range(lowest, lowest + 8)])

    readers = [Reader(read_pages), Reader(find_keys)]
    for _ in range(10):
        aged.fill(2)
        aged.age(80)
        aged.run_on_request()
    patience = time.monotonic() + 60
    while store.retention.cleaner.files_deleted <= 5:
        assert time.monotonic() < patience, "readers let go again and again"
        aged.run_on_request()
    for reader in readers:
        reader.end()
    assert aged.numbers() == list(range(store.min_offset("T", 0), 22 * PER_FILE))
    while aged.run_on_request():
        pass
    assert aged.log_names == [21]
    assert len(home.index_files()) == len(home.queue_files("T")) == 1
    assert statuses <= {
        GetStatus.FOUND,
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_ONE,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.MESSAGE_WAS_REMOVING,
    }


def test_a_reader_who_pages_on_while_files_go_gets_everything_that_is_left(aged: AgedStore) -> None:
    store = aged.store
    page = store.get("T", 0, 0, 3)
    got = [int(record.body[:6]) for record in page.messages]
    aged.run_on_request()
    while page.status is not GetStatus.OFFSET_OVERFLOW_ONE:
        page = store.get("T", 0, page.next_begin_offset, 3)
        got += [int(record.body[:6]) for record in page.messages]
    assert got == [0, 1, 2, 16, 17, 18, 19]


def test_no_file_is_lost_from_the_list_when_one_is_added_while_another_goes(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(2)
    queue = aged.store.log.queue
    dropping = Reader(lambda: len(queue.files) > 1 and queue.drop_first())
    for _ in range(40):
        aged.fill(1)
    dropping.end()
    starts = [file.from_offset // FILE_SIZE for file in queue.files]
    assert starts == list(range(starts[0], 42))
    assert aged.log_names == starts
