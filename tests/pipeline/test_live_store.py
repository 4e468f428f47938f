"""Reading a store while a broker writes to it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support import full_speed_writer
from support.disks import FaultyFiles
from support.pipeline import options_for, read, read_table, read_tasks
from support.stores import StoreHome, eventually

from penstock.pipeline.offset_ranges import Queue
from penstock.pipeline.scan_plan import choose_queues, open_source, plan, plan_batch, spans_between
from penstock.pipeline.store_read_tasks import QueueTask
from penstock.store import Message, MessageStore, Settings

COUNT = 20_000
NAMES = ("topic", "queue_id", "queue_offset", "physical_offset", "body_crc", "keys", "store_size")
SETTINGS = Settings.dev(
    mapped_file_size_commit_log=full_speed_writer.FILE_SIZE, mapped_file_size_consume_queue=20 * 500
)


@contextmanager
def writing(folder: Path, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process that fills the store at full speed."""
    command = [sys.executable, full_speed_writer.__file__, str(folder), str(count), "mappedFileSizeConsumeQueue=10000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: (folder / "consumequeue").is_dir() or process.poll() is not None, "no store was made")
            yield process
            _, errors = process.communicate()
            assert process.returncode == 0, errors
        finally:
            process.kill()


def sorted_by_queue(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in ("topic", "queue_id", "queue_offset")])


class Seen:
    """What some reads returned, to be compared with what is there in the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.by_queue: list[tuple[dict[tuple[str, int], int], pa.Table]] = []
        self.logs: list[pa.Table] = []

    def read_queues(self) -> None:
        """Plans again, and reads."""
        options = options_for(self._folder, subscribePattern=".*", maxBytesPerPartition=3_000_000)
        tasks = plan_batch(options)
        ends: dict[tuple[str, int], int] = {}
        for task in tasks:
            assert isinstance(task, QueueTask)
            for span in task.spans:
                assert span.start == ends.get((span.topic, span.queue_id), 0)
                ends[span.topic, span.queue_id] = span.stop
        self.by_queue.append((ends, read_table(options, tasks, NAMES)))

    def read_log(self) -> None:
        options = options_for(self._folder, order="log", maxBytesPerPartition=3_000_000)
        self.logs.append(read_table(options, plan_batch(options), NAMES))

    def check(self) -> None:
        """Each read was the beginning of each queue up to what was planned, or the beginning of the log."""
        with MessageStore.open(self._folder, SETTINGS, read_only=True) as store:
            pages = list(log_pages(store))
        log = pa.Table.from_batches(pages)
        for ends, table in self.by_queue:
            wanted = pa.array([False] * len(log))
            for (topic, queue_id), end in ends.items():
                mine = pc.and_(pc.equal(log["topic"], topic), pc.equal(log["queue_id"], queue_id))
                wanted = pc.or_(wanted, pc.and_(mine, pc.less(log["queue_offset"], end)))
            assert len(table) == sum(ends.values())
            assert sorted_by_queue(table).equals(sorted_by_queue(log.filter(wanted)))
        for table in self.logs:
            assert table.equals(log.slice(0, len(table)))

    @property
    def stages(self) -> int:
        """How many different amounts were seen."""
        return len({*(len(table) for _, table in self.by_queue), *(len(table) for table in self.logs)})


def log_pages(store: MessageStore) -> Iterator[pa.RecordBatch]:
    at = 0
    while (page := store.log_arrow(at, columns=NAMES)).batch.num_rows:
        yield page.batch
        at = page.next_offset


def test_every_read_of_a_store_in_full_swing_is_its_beginning(tmp_path: Path) -> None:
    seen = Seen(tmp_path / "store")
    for _ in range(10):
        with writing(tmp_path / "store", COUNT) as process:
            while process.poll() is None:
                seen.read_queues()
                seen.read_log()
        if seen.stages > 4:
            break
    seen.check()
    counts = [len(table) for _, table in seen.by_queue]
    assert counts == sorted(counts)
    assert seen.stages > 4, "it must have been read while it grew"


def test_a_place_that_is_followed_hands_out_each_message_once(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    options = options_for(folder, subscribePattern=".*")
    tables: list[pa.Table] = []
    with writing(folder, COUNT) as process, closing(open_source(options, following=True)) as source:
        first: dict[Queue, int] = {}
        running = True
        while running:
            running = process.poll() is None
            source.refresh()
            last = {queue: source.bounds(queue)[1] for queue in choose_queues(source, options)}
            spans = spans_between(source, {queue: first.get(queue, 0) for queue in last}, last, options)
            new = read_table(options, plan(source, spans, options), NAMES)
            assert len(new) == sum(last.values()) - sum(first.values())
            tables += [new] if len(new) else []
            first = last
    written = json.loads((tmp_path / "store.json").read_text())
    everything = pa.concat_tables(tables)
    assert sorted(everything["physical_offset"].to_pylist()) == written["offsets"]
    for queue, end in last.items():
        mine = pc.and_(pc.equal(everything["topic"], queue.topic), pc.equal(everything["queue_id"], queue.queue_id))
        assert everything.filter(mine)["queue_offset"].to_pylist() == list(range(end)), "in order, each once"
    assert len(tables) > 1, "it must have been read while it grew"


# -- SYNC_FLUSH ----------------------------------------------------------------------------------------------------


class SlowDisk:
    """A disk that keeps a sync of the log waiting until the test lets it go on."""

    def __init__(self) -> None:
        self.files = FaultyFiles()
        self.files.before_sync = self._wait
        self.waiting = threading.Event()
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    def _wait(self, path: Path) -> None:
        if path.parent.name == "commitlog" and not self._may_go_on.is_set():
            self.waiting.set()
            assert self._may_go_on.wait(60)

    def stop(self) -> None:
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()


def test_under_sync_flush_nothing_is_seen_before_it_is_on_disk(tmp_path: Path) -> None:
    home, disk = StoreHome(tmp_path / "store"), SlowDisk()
    store = home.open(files=disk.files, sync=True, flush_interval_commit_log=3_600_000)
    options = options_for(home.path, topic="T")
    answers: list[bool] = []
    with closing(store):
        assert store.put(Message("T", b"first", keys=("k",))).ok
        store.catch_up()
        source = open_source(options, following=True)

        def seen() -> list[list[bytes]]:
            """By all ways of reading."""
            source.refresh()
            queues = choose_queues(source, options)
            last = {queue: source.bounds(queue)[1] for queue in queues}
            followed = read_tasks(
                options, plan(source, spans_between(source, dict.fromkeys(last, 0), last, options), options)
            )
            ways = [
                followed,
                read(home.path, topic="T"),
                read(home.path, order="log"),
                read(home.path, topic="T", keys="k"),
            ]
            return [[row["body"] for row in rows] for rows in ways]

        assert seen() == [[b"first"]] * 4
        disk.stop()
        putting = threading.Thread(target=lambda: answers.append(store.put(Message("T", b"second", keys=("k",))).ok))
        putting.start()
        assert disk.waiting.wait(60)
        for _ in range(3):
            assert seen() == [[b"first"]] * 4
        assert not answers
        disk.go_on()
        putting.join()
        assert answers == [True]
        store.catch_up()
        eventually(lambda: seen() == [[b"first", b"second"]] * 4, "what is on disk can be seen")
        source.close()


@pytest.mark.parametrize("by", [{"topic": "T"}, {"order": "log"}], ids=str)
def test_a_plan_is_not_changed_by_what_comes_later(tmp_path: Path, by: dict[str, str]) -> None:
    home = StoreHome(tmp_path / "store")
    with home.open() as store:
        home.put_numbered(store, 10)
        store.catch_up()
        options = options_for(home.path, **by)
        tasks = plan_batch(options)
        home.put_numbered(store, 10)
        store.catch_up()
        assert len(read_tasks(options, tasks)) == 10
        assert len(read(home.path, **by)) == 20
    assert len(read_tasks(options, tasks)) == 10, "nor by its end"
