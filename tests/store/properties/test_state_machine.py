"""A store beside a model of it, driven by hypothesis: puts of every kind, flushes, dispatch, deletion, and the end.

The end comes between any two steps: a clean close, a kill (the folder is copied as the page cache has it), or a power
loss (the disk keeps any part of what was not synced). Then the store is opened again, and every way of asking is
compared with `StoreModel`:

- after a close or a kill, everything that was acknowledged is there;
- after a power loss, what was acknowledged as durable is there, and so is whatever else is whole on the disk;
- no message is altered, moved, or served twice, and none comes back once its topic is deleted.

`make test` has a short run, `make torture` a long one: PENSTOCK_HISTORIES sets how many histories.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from store.properties.test_put_is_got import LATER, MESSAGES, ORDINARY, START_MS, TOPICS, scratch
from support.effort import chosen_seed, tell_progress
from support.messages import read_queue
from support.power_loss import Image, PowerLossFiles, write_image
from support.store_model import PREPARED, ROLLBACK, StoreModel

from penstock.store import FlushDiskType, GetStatus, Message, MessageStore, Page, PutResult, PutStatus, Record, Settings
from penstock.store.audit import audit
from penstock.store.deleted_topics_file import DeletedTopics
from penstock.store.get import PageGetter
from penstock.store.rebuild import rebuild
from penstock.store.repair import repair
from penstock.store.retention.policy import Cause, RetentionLimits

HISTORIES = int(os.environ.get("PENSTOCK_HISTORIES", "3000"))
CHUNK = 100
"""Histories of one seed."""
PARTS = 4
"""Tests that share the histories, for as many workers."""
FILE_SIZE = 4096
HOUR_MS = 3_600_000
COMMIT = 0x8
ALL = 1000
"""More than a query can find."""
ROWS = st.builds(
    Message,
    topic=st.sampled_from(TOPICS),
    body=st.binary(max_size=300),
    keys=st.lists(st.sampled_from(["order_1", "order_2", "ключ"]), max_size=2).map(tuple),
    tags=st.sampled_from(["", "Aa", "BB"]),
    queue_id=st.sampled_from([0, 1]),
    delay_level=st.sampled_from([0, 0, 0, 3]),
)


class ModelledStore:
    """One store that lives through closes, kills and power losses, and the model beside it."""

    def __init__(self, folder: Path, flush: FlushDiskType, *, pre_allocate: bool, dispatches: bool, seed: int) -> None:
        """`dispatches`: whether messages are dispatched as they come, not only when somebody asks for them."""
        hour = datetime.fromtimestamp(START_MS / 1000).hour
        self.settings = Settings.dev(
            mapped_file_size_commit_log=FILE_SIZE,
            mapped_file_size_consume_queue=8 * 20,
            max_hash_slot_num=8,
            max_index_num=24,
            max_msgs_num_batch=ALL,
            flush_disk_type=flush,
            sync_flush_timeout=60_000,
            pre_allocate_files=pre_allocate,
            grow_log_files=bool(seed % 2),
            flush_interval_commit_log=HOUR_MS,  # between two steps nothing happens by itself
            flush_interval_consume_queue=HOUR_MS,
            delete_commit_log_files_interval=0,
            delete_consume_queue_files_interval=0,
            delete_when=f"{(hour + 12) % 24:02d}",
        )
        self._folder = folder
        self._dispatches = dispatches
        self._generation = 0
        self.now = START_MS
        self.model = StoreModel(FILE_SIZE, self.settings.store_host)
        self.halves: list[Record] = []
        """Half messages of transactions that have not ended."""
        self.lost_some = False
        """Whether a power loss has ever taken a record, so that places in the log and in queues may be empty."""
        self.damaged = False
        """Whether such a place has not been repaired."""
        self.base.mkdir()
        self.files = PowerLossFiles(self.base, str(seed))
        self.store = self.open()

    @property
    def base(self) -> Path:
        return self._folder / str(self._generation)

    @property
    def root(self) -> Path:
        return self.base / "store"

    @property
    def syncs_puts(self) -> bool:
        return self.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH

    def open(self) -> MessageStore:
        store = MessageStore.open(self.root, self.settings, files=self.files, clock=lambda: self.now)
        if not self._dispatches:
            store.dispatcher.set_batch_delay(HOUR_MS / 1000)
        return store

    # -- putting ---------------------------------------------------------------------------------------------

    def put(self, message: Message, put: Callable[[Message], PutResult], *, waits: bool = True) -> Record | None:
        """Puts one message; the result must be the model's. `waits`: whether `put` waits for the disk."""
        answer = put(message)
        if not self.model.takes([message], batch=False):
            assert (answer.status, answer.stored) == (PutStatus.MESSAGE_ILLEGAL, False)
            return None
        (record,) = self.model.put([message], self.now)
        assert answer.ok, answer.reason
        assert (answer.msg_id, answer.physical_offset, answer.size) == (
            *(record.msg_id, record.physical_offset, record.size),
        )
        assert (answer.queue_id, answer.queue_offset) == (record.queue_id, record.queue_offset)
        self._acknowledged(waits)
        return record

    def put_many(self, messages: list[Message]) -> None:
        answer = self.store.put_many(messages)
        if not self.model.takes(messages, batch=True):
            assert (answer.status, answer.results) == (PutStatus.MESSAGE_ILLEGAL, ())
            return
        records = self.model.put(messages, self.now)
        assert answer.ok, answer.reason
        assert answer.msg_id == ",".join(record.msg_id for record in records)
        assert [result.queue_offset for result in answer.results] == [record.queue_offset for record in records]
        self._acknowledged(True)

    def put_arrow(self, rows: list[Message]) -> None:
        names = ("topic", "body", "tags", "queue_id", "delay_level")
        columns = {name: [getattr(row, name) for row in rows] for name in names}
        columns["keys"] = pa.array([list(row.keys) for row in rows], pa.list_(pa.string()))
        answer = self.store.put_arrow(pa.RecordBatch.from_pydict(columns))
        assert answer.ok, answer.reason
        self.model.put(rows, self.now)
        self._acknowledged(True)

    def _acknowledged(self, waited: bool) -> None:
        if waited and self.syncs_puts:
            self.model.make_durable()

    def put_half(self, message: Message) -> None:
        record = self.put(message, self.store.put)
        assert record is not None
        self.halves.append(record)

    def end_transaction(self, end: int) -> None:
        """Commits or rolls back the oldest half message that is left."""
        half = self.halves.pop(0)
        there = self.store.look_up(half.physical_offset)
        if half not in self.model.records:
            assert there is None or there.body != half.body or there != half
            return
        assert there == half
        ended = Message(
            half.topic,
            half.body if end == COMMIT else b"",
            queue_id=half.queue_id,
            sys_flag=end,
            prepared_transaction_offset=half.physical_offset,
        )
        self.put(ended, self.store.put)

    def flush(self) -> None:
        self.store.flush()
        self.model.make_durable()

    # -- deleting --------------------------------------------------------------------------------------------

    def expire(self, count: int) -> None:
        """The first log files grow old, and a pass deletes them: those that are on disk, never the last."""
        self.store.catch_up()
        files = self.store.log.queue.files[:]
        for number, file in enumerate(files):
            changed = (self.now - 100 * HOUR_MS * (number < count)) / 1000
            os.utime(file.path, (changed, changed))
        assert self.store.retention is not None
        gone = self.store.retention.cleaner.run(on_request=True)
        most = max(min(count, len(files) - 1, 10), 0)
        on_disk = [file for file in files[:most] if file.from_offset + file.size <= self.model.durable]
        assert [file.name for file in gone] == [file.path.name for file in files[: len(gone)]]
        assert len(on_disk) <= len(gone) <= most
        if gone:
            self.model.expire(files[len(gone)].from_offset)

    def delete_topic(self, topic: str) -> None:
        known = any(queue[0] == topic for queue in self.model.queues())
        assert self.store.delete_topic(topic) or not known
        self.model.delete_topic(topic)

    def clean_expired_queues(self) -> None:
        self.make_visible()
        removed, empty = set(self.store.clean_expired_queues()), self.model.empty_queues()
        # A queue whose last message was lost still has its unit, and stays.
        assert removed == empty or (self.lost_some and removed < empty), (removed, empty)
        self.model.remove_queues(removed)

    # -- ends and beginnings ---------------------------------------------------------------------------------

    def reopen(self) -> None:
        self.store.close()
        self.model.make_durable()
        self._restart(clean=True)

    def kill(self) -> None:
        """Goes on with the folder as it is in the page cache, wherever dispatch was."""
        with self.store.dispatcher.paused():
            files = self.files.after_crash(self._folder / str(self._generation + 1))
        self._leave(files)
        self._restart(clean=False)

    def lose_power(self, seed: int) -> None:
        """Goes on with what the disk may hold: what was synced, and any part of the rest."""
        with self.store.dispatcher.paused():
            self.files.chance = random.Random(seed)
            image = self.files.image()
            whole = [record for record in self.model.records if self._is_whole(image, record)]
        write_image(image, self._folder / str(self._generation + 1))
        self._leave(PowerLossFiles(self._folder / str(self._generation + 1), str(seed)))
        self.store = self.open()
        log, model = self.store.log, self.model
        lost = model.adopt(max(log.min_offset, 0), max(log.max_offset, 0), self.store.look_up)
        for record in whole:
            assert record not in lost, f"{record} is whole on the disk, and lost"
        model.adopt_queues(self.store.max_offset)
        holes = any(record.physical_offset < model.end for record in lost)
        self.damaged = self.damaged or holes or bool(self.store.report.damage)  # a filler may be lost alone
        self.lost_some = self.lost_some or bool(lost) or self.damaged
        self.check()

    def repair(self) -> None:
        """Closes, repairs and opens: everything is as it was, and an audit finds nothing."""
        self.store.close()
        self.model.make_durable()
        report = repair(self.root, self.settings, files=self.files, clock=lambda: self.now)
        assert self.damaged or not report.ranges, report.ranges
        self.damaged = False
        self._audit()
        self._restart(clean=True)

    def rebuild(self) -> None:
        """Closes, builds queues and index from the log, and opens: everything is as it was."""
        self.store.close()
        self.model.make_durable()
        rebuild(self.root, self.settings, files=self.files, clock=lambda: self.now)
        self._restart(clean=True)

    def _is_whole(self, image: Image, record: Record) -> bool:
        """Whether an image has every byte of a record."""
        position = record.physical_offset % FILE_SIZE
        name = f"store/commitlog/{record.physical_offset - position:020d}"
        content = image.get(name)
        now = (self.base / name).read_bytes()
        return content is not None and content[position:][: record.size] == now[position:][: record.size]

    def _leave(self, files: PowerLossFiles) -> None:
        """Forgets the store that runs, and goes on in the next folder."""
        before, old = self.base, self.files
        self.store.close()
        old.close()
        self._generation += 1
        self.files = files
        shutil.rmtree(before)

    def _restart(self, *, clean: bool) -> None:
        self.store = self.open()
        report = self.store.report
        assert report.clean_exit is clean
        assert self.lost_some or (report.damage, report.units_cut, report.torn_bytes) == ([], 0, 0)
        assert (max(self.store.log.min_offset, 0), self.store.log.max_offset) == (self.model.begin, self.model.end)
        self.check()

    # -- comparing -------------------------------------------------------------------------------------------

    def make_visible(self) -> None:
        """Under SYNC_FLUSH nothing is served that is not on disk."""
        if self.syncs_puts and self.model.durable < self.model.end:
            self.flush()

    def check(self) -> None:
        self.make_visible()
        self.check_queues()
        self.check_keys()
        for record in self.model.records:
            assert self.store.look_up(record.physical_offset) == record
            assert self.store.look_up_id(record.msg_id) == record
        if not self.lost_some:
            self.check_log()

    def check_queues(self) -> None:
        store, model = self.store, self.model
        store.catch_up()
        served = {(queue.topic, queue.queue_id) for queue in store.queues if queue.max_offset}
        assert served == model.queues(), (served, model.queues())
        for topic, queue_id in model.queues():
            expected, end = model.queue(topic, queue_id), model.next_offsets[topic, queue_id]
            first = expected[0].queue_offset if expected else end
            assert store.max_offset(topic, queue_id) == end, (
                topic,
                queue_id,
                end,
                store.max_offset(topic, queue_id),
                first,
            )
            lowest = store.min_offset(topic, queue_id)
            assert lowest == first or (self.lost_some and 0 <= lowest < first), (topic, queue_id, lowest, first)
            assert read_queue(store, topic, queue_id) == expected

    def check_page(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        """A get from any offset: messages from there on, none passed over."""
        self.make_visible()
        page = self.store.get(topic, queue_id, offset, count)
        expected = [record for record in self.model.queue(topic, queue_id) if record.queue_offset >= offset]
        messages = list(page.messages)
        if page.status is not GetStatus.FOUND:
            lowest, end = max(self.store.min_offset(topic, queue_id), 0), self.store.max_offset(topic, queue_id)
            assert self.lost_some or not lowest <= offset < end, (offset, page)
            assert not messages
            return
        assert messages == expected[: len(messages)]
        assert 0 < len(messages) <= max(count, 1)
        rest = expected[len(messages) :]
        assert messages[-1].queue_offset < page.next_begin_offset
        assert not rest or page.next_begin_offset <= rest[0].queue_offset

    def check_keys(self) -> None:
        for topic, key in sorted(self.model.topics_and_keys()):
            expected = self.model.query(topic, key, 0, 2**63 - 1, ALL)
            found = list(self.store.query(topic, key, max_messages=ALL))
            assert [record for record in expected if record in found] == found, (topic, key)
            missed = [record for record in expected if record not in found]
            assert all(self.model.is_deleted(record) for record in missed), (topic, key, missed)

    def check_log(self) -> None:
        """A scan of the log finds exactly the records."""
        found: list[int] = []
        at = self.model.begin
        while (page := self.store.log_arrow(at, columns=["physical_offset"])).batch.num_rows:
            found += page.batch.column(0).to_pylist()
            at = page.next_offset
        assert found == [record.physical_offset for record in self.model.records]

    def finish(self) -> None:
        """Compares for the last time; closes; an audit finds nothing in the files."""
        self.check()
        self.store.close()
        if not self.damaged:
            self._audit()

    def _audit(self) -> None:
        errors = audit(self.root, self.settings).errors
        assert not errors, errors[:3]

    def close(self) -> None:
        self.store.close()
        self.files.close()


class StoreMachine(RuleBasedStateMachine):
    """The steps of a history, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._folder: AbstractContextManager[Path] = scratch()
        self.home: ModelledStore | None = None

    @initialize(
        flush=st.sampled_from(FlushDiskType),
        pre_allocate=st.booleans(),
        dispatches=st.booleans(),
        seed=st.integers(0, 1 << 30),
    )
    def begin(self, flush: FlushDiskType, pre_allocate: bool, dispatches: bool, seed: int) -> None:
        folder = self._folder.__enter__()
        self.home = ModelledStore(folder, flush, pre_allocate=pre_allocate, dispatches=dispatches, seed=seed)

    @property
    def at(self) -> ModelledStore:
        assert self.home is not None
        return self.home

    @rule(message=ORDINARY | MESSAGES, later=LATER)
    def put(self, message: Message, later: int) -> None:
        self.at.now += later
        self.at.put(message, self.at.store.put)

    @rule(message=ORDINARY)
    def put_async(self, message: Message) -> None:
        self.at.put(message, lambda each: self.at.store.put_async(each).result())

    @rule(message=ORDINARY)
    def append(self, message: Message) -> None:
        self.at.put(message, self._append, waits=False)

    def _append(self, message: Message) -> PutResult:
        while (answer := self.at.store.append(message)).status is PutStatus.OS_PAGECACHE_BUSY:
            pass  # the next file is not ready
        return answer

    @rule(messages=st.lists(ORDINARY, min_size=1, max_size=6) | st.lists(MESSAGES, min_size=1, max_size=3))
    def put_many(self, messages: list[Message]) -> None:
        self.at.put_many(messages)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(5, 9))
    def fill(self, topic: str, count: int) -> None:
        """Files that retention can delete."""
        for number in range(count):
            self.at.put(Message(topic, bytes([number]) * 1500, queue_id=number % 2), self.at.store.put)

    @rule(rows=st.lists(ROWS, min_size=1, max_size=5))
    def put_arrow(self, rows: list[Message]) -> None:
        self.at.put_arrow(rows)

    @rule(topic=st.sampled_from(TOPICS), body=st.binary(max_size=50))
    def put_half(self, topic: str, body: bytes) -> None:
        self.at.put_half(Message(topic, body, sys_flag=PREPARED))

    @precondition(lambda self: self.at.halves)
    @rule(end=st.sampled_from([COMMIT, ROLLBACK]))
    def end_transaction(self, end: int) -> None:
        self.at.end_transaction(end)

    @rule()
    def flush(self) -> None:
        self.at.flush()

    @rule()
    def dispatch(self) -> None:
        self.at.store.catch_up()

    @rule(
        topic=st.sampled_from(TOPICS), queue_id=st.integers(0, 1), offset=st.integers(-1, 40), count=st.integers(1, 9)
    )
    def get(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        self.at.check_page(topic, queue_id, offset, count)

    @rule()
    def look(self) -> None:
        self.at.check()

    @rule(count=st.integers(1, 3))
    def expire(self, count: int) -> None:
        self.at.expire(count)

    @rule()
    def clean_expired_queues(self) -> None:
        self.at.clean_expired_queues()

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self.at.delete_topic(topic)

    @rule()
    def reopen(self) -> None:
        self.at.reopen()

    @rule()
    def kill(self) -> None:
        self.at.kill()

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        self.at.lose_power(seed)

    @rule()
    def repair(self) -> None:
        self.at.repair()

    @rule()
    def rebuild(self) -> None:
        self.at.rebuild()

    def teardown(self) -> None:
        if self.home is None:
            return
        with ExitStack() as stack:
            stack.callback(self._folder.__exit__, None, None, None)
            stack.callback(self.home.close)
            self.home.finish()


def run(machine: type[StoreMachine], histories: int, steps: int, **changes: Any) -> None:
    chosen = settings(
        max_examples=histories,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **changes,
    )
    run_state_machine_as_test(machine, settings=chosen)


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of starts say hundreds of times what they found; what matters is asserted."""
    caplog.set_level(logging.CRITICAL, logger="penstock.store")


def test_a_store_is_what_its_model_says_whatever_happens() -> None:
    run(StoreMachine, 20, 30, derandomize=True, database=None)


@pytest.mark.torture
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_store_is_what_its_model_says_in_thousands_of_histories(part: int) -> None:
    first = chosen_seed()
    for done in range(part * CHUNK, HISTORIES, PARTS * CHUNK):
        chosen: type[StoreMachine] = seed(first + done)(type("Seeded", (StoreMachine,), {}))
        run(chosen, min(CHUNK, HISTORIES - done), 50, database=None)
        tell_progress(f"histories of a store and its model, part {part}", done + CHUNK, HISTORIES, CHUNK)


# -- the model can fail --------------------------------------------------------------------------------------


def acknowledge_without_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PowerLossFiles, "sync_map", lambda *arguments: None)


def delete_young_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetentionLimits, "cause", lambda *arguments: Cause.AGE)


def forget_deleted_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeletedTopics, "load", lambda self, layout: {})


def pass_over_a_message(patch: pytest.MonkeyPatch) -> None:
    really = PageGetter.get

    def get(self: PageGetter, topic: str, queue_id: int, offset: int, *more: Any) -> Page:
        return really(self, topic, queue_id, offset + (offset == 2), *more)

    patch.setattr(PageGetter, "get", get)


def lose_a_record_in_a_kill(patch: pytest.MonkeyPatch) -> None:
    """The last record of the first log file is gone when the next start looks."""
    really = PowerLossFiles.after_crash

    def after_crash(self: PowerLossFiles, base: Path) -> PowerLossFiles:
        there = really(self, base)
        for path in sorted((base / "store").glob("commitlog/*"))[:1]:
            content = path.read_bytes()
            kept = content.rpartition(b"\xda\xa3\x20\xa7")[0]
            path.write_bytes(kept.ljust(len(content), b"\0"))
        return there

    patch.setattr(PowerLossFiles, "after_crash", after_crash)


@pytest.mark.parametrize(
    "fault",
    [
        acknowledge_without_sync,
        delete_young_files,
        forget_deleted_topics,
        pass_over_a_message,
        lose_a_record_in_a_kill,
    ],
)
def test_the_model_notices_a_store_that_breaks_a_rule(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    once = {"phases": [Phase.generate], "derandomize": True, "database": None, "report_multiple_bugs": False}
    with pytest.raises((AssertionError, FlakyFailure)):  # threads decide how far dispatch was
        run(StoreMachine, 200, 30, **once)
