"""What is put is what is got: by queue, by tag, by key, by id and by time, whatever happened in between.

Each example is a random history of one store with tiny files: single messages and batches, clean restarts, and
crashes of several kinds. After each restart and at the end every way of asking is compared with `StoreModel`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import BY_TWIN, running_on
from support.store_model import SCHEDULE_TOPIC, StoreModel

from penstock.format import kernels
from penstock.format.kernel_row_types import Reason
from penstock.store import Boundary, FlushDiskType, GetStatus, Message, MessageStore, PutStatus, Settings

FILE_SIZE = 8192
START_MS = 1_700_000_000_000
QUERY_LIMIT = 64
MEMORY = Path("/dev/shm")

# -- histories -----------------------------------------------------------------------------------------------

TOPICS = ["orders", "T", "%RETRY%group_1", "t|" + "x" * 125]
HOSTS = ["127.0.0.1:0", "10.20.30.40:65535", "[1050::5:600:300c:326b]:10911", "[::1]:1"]
TAGS = ["", "Aa", "BB", "paid", "中文", "😀", "polygenelubricants"]  # the second and third have the same hash
KEYS = ["Aa", "BB", "order_1", "order_2", "ключ", "🔑", "k" * 60]
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
ODD_TEXT = st.one_of(TEXT, st.sampled_from(["a\x01b", "\x01", "a\x02b", "a b", "\x00"]))


def make_body(size: int, seed: int) -> bytes:
    return bytes((seed + 7 * place) % 256 for place in range(min(size, 64))) + bytes([seed]) * (size - min(size, 64))


MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(TOPICS),
    body=st.builds(make_body, st.integers(0, 2000), st.integers(0, 255)),
    keys=st.lists(st.sampled_from(KEYS), max_size=3).map(tuple),
    tags=st.sampled_from(TAGS),
    properties=st.dictionaries(
        st.sampled_from(["UNIQ_KEY", "CLUSTER", "имя", "x", "a\x01b", "a\x02b"]), ODD_TEXT, max_size=2
    ),
    queue_id=st.sampled_from([0, 0, 1, 2**31 - 1]),
    delay_level=st.sampled_from([0, 0, 0, 0, 1, 3, 18, 25]),
    flag=st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)]),
    sys_flag=st.sampled_from([0, 0, 0, 0x1, 0x2, 0x4, 0x8, 0xC, 0x101, 0x30]),
    born_timestamp=st.sampled_from([0, 1, START_MS, 2**63 - 1]),
    born_host=st.sampled_from(HOSTS),
    store_host=st.sampled_from(["", "", "", *HOSTS[1:]]),
    reconsume_times=st.sampled_from([0, 3, -1]),
    prepared_transaction_offset=st.sampled_from([0, 77, -1, 2**63 - 1]),
)
ORDINARY = st.builds(
    Message,
    topic=st.sampled_from(TOPICS),
    body=st.builds(make_body, st.integers(0, 600), st.integers(0, 255)),
    keys=st.lists(st.sampled_from(KEYS), max_size=2).map(tuple),
    tags=st.sampled_from(TAGS),
    queue_id=st.sampled_from([0, 1]),
)
RESTARTS = ["reopen", "crash", "crash and lose derived", "crash while dispatching"]
LATER = st.sampled_from([0, 0, 1, 2, 999, 1000, 1001, 61_000])
STEPS = st.one_of(
    st.tuples(st.just("put"), ORDINARY, LATER),
    st.tuples(st.just("put"), MESSAGES, LATER),
    st.tuples(st.just("batch"), st.lists(ORDINARY, min_size=1, max_size=6), LATER),
    st.tuples(st.just("batch"), st.lists(MESSAGES, min_size=1, max_size=3), LATER),
    st.tuples(st.just("remember"), st.none(), st.just(0)),
    st.tuples(
        st.sampled_from(["reopen", "crash", "crash and lose derived", "crash while dispatching"]), st.none(), LATER
    ),
    st.tuples(st.just("crash and tear"), st.binary(min_size=1, max_size=300), LATER),
)
HISTORIES = st.sampled_from([1, 12, 30]).flatmap(lambda size: st.lists(STEPS, min_size=size, max_size=size + 8))
SETTINGS = st.fixed_dictionaries(
    {
        "flush_disk_type": st.sampled_from(FlushDiskType),
        "pre_allocate_files": st.booleans(),
        "broker_ip1": st.sampled_from(["127.0.0.1", "::1"]),
        "max_index_num": st.sampled_from([3, 12, 400]),
    }
)


class History:
    """One store that lives through restarts and crashes, and the model beside it."""

    def __init__(self, folder: Path, changes: dict[str, Any]) -> None:
        self._folder = folder
        self._generation = 0
        self._remembered: Path | None = None
        self.settings = Settings.dev(
            mapped_file_size_commit_log=FILE_SIZE,
            mapped_file_size_consume_queue=8 * 20,
            max_hash_slot_num=8,
            max_msgs_num_batch=QUERY_LIMIT,
            **changes,
        )
        self.now = START_MS
        self.model = StoreModel(FILE_SIZE, self.settings.store_host)
        self.store = self.open()

    @property
    def root(self) -> Path:
        return self._folder / str(self._generation)

    def open(self, *, read_only: bool = False) -> MessageStore:
        return MessageStore.open(self.root, self.settings, read_only=read_only, clock=lambda: self.now)

    def step(self, kind: str, what: Any, later: int) -> None:
        self.now += later
        if kind == "put":
            self.put(what)
        elif kind == "batch":
            self.put_many(what)
        elif kind == "remember":
            self.remember_derived()
        elif kind == "reopen":
            self.store.close()
            self.store = self.open()
            self.check_start(clean=True)
        else:
            self.crash(kind, what)

    # -- putting ---------------------------------------------------------------------------------------------

    def put(self, message: Message) -> None:
        answer = self.store.put(message)
        if not self.model.takes([message], batch=False):
            assert (answer.status, answer.stored) == (PutStatus.MESSAGE_ILLEGAL, False)
            return
        (record,) = self.model.put([message], self.now)
        assert answer.ok, answer.reason
        assert answer.msg_id == record.msg_id
        assert (answer.physical_offset, answer.size) == (record.physical_offset, record.size)
        assert (answer.queue_id, answer.queue_offset) == (record.queue_id, record.queue_offset)

    def put_many(self, messages: list[Message]) -> None:
        answer = self.store.put_many(messages)
        if not self.model.takes(messages, batch=True):
            assert (answer.status, answer.results) == (PutStatus.MESSAGE_ILLEGAL, ())
            return
        records = self.model.put(messages, self.now)
        assert answer.ok, answer.reason
        assert answer.msg_id == ",".join(record.msg_id for record in records)
        assert [result.queue_offset for result in answer.results] == [record.queue_offset for record in records]

    # -- crashing --------------------------------------------------------------------------------------------

    def remember_derived(self) -> None:
        """Keeps queues and index as they are now: what a crash leaves if dispatch was no further."""
        self.store.catch_up()
        self._remembered = self._folder / "remembered"
        shutil.rmtree(self._remembered, ignore_errors=True)
        for name in ("consumequeue", "index"):
            if (self.root / name).exists():
                shutil.copytree(self.root / name, self._remembered / name)

    def crash(self, kind: str, torn: bytes | None) -> None:
        """Goes on with a copy of the folder as it was in the middle of running."""
        self.store.catch_up()
        before = self.root
        self._generation += 1
        shutil.copytree(before, self.root)
        self.store.close()
        shutil.rmtree(before)
        if kind in ("crash and lose derived", "crash while dispatching"):
            for name in ("consumequeue", "index"):
                shutil.rmtree(self.root / name, ignore_errors=True)
        if kind == "crash while dispatching" and self._remembered is not None and self._remembered.exists():
            shutil.copytree(self._remembered, self.root, dirs_exist_ok=True)
        self._remembered = None
        torn_bytes = self.tear(torn) if torn else 0
        self.store = self.open()
        self.check_start(clean=False, torn_bytes=torn_bytes)

    def tear(self, torn: bytes) -> int:
        """Writes a beginning that never became a record behind the last one; returns how much of it counts."""
        path = self.root / "commitlog" / f"{self.model.end // FILE_SIZE * FILE_SIZE:020d}"
        position = self.model.end % FILE_SIZE
        torn = torn[: FILE_SIZE - position]
        if not path.exists():
            return 0
        with path.open("r+b") as file:
            file.seek(position)
            file.write(torn)
        return len(torn.rstrip(b"\0"))

    def check_start(self, *, clean: bool, torn_bytes: int = 0) -> None:
        report = self.store.report
        assert report.clean_exit is clean
        assert report.torn_bytes == torn_bytes
        assert (report.damage, report.units_cut) == ([], 0)
        self.check(self.store)

    # -- comparing -------------------------------------------------------------------------------------------

    def check(self, store: MessageStore) -> None:
        self.check_queues(store)
        self.check_times(store)
        self.check_ids(store)
        self.check_keys(store)

    def check_queues(self, store: MessageStore) -> None:
        assert {
            (topic, queue.queue_id) for topic in store.topics() for queue in store.queues if queue.topic == topic
        } == (self.model.queues())
        for topic, queue_id in self.model.queues():
            expected = self.model.queue(topic, queue_id)
            assert store.min_offset(topic, queue_id) == 0
            assert store.max_offset(topic, queue_id) == len(expected)
            assert read(store, topic, queue_id) == expected
            if topic == SCHEDULE_TOPIC:
                continue  # its units hold the time of delivery in place of the tag's hash
            for tags in ("Aa", "BB || paid", "中文||😀", "*", "nobody"):
                wanted = {tag.strip() for tag in tags.split("||")}
                matching = [record for record in expected if record.tags in wanted or tags == "*"]
                assert read(store, topic, queue_id, tags) == matching

    def check_times(self, store: MessageStore) -> None:
        for topic, queue_id in self.model.queues():
            times = {record.store_timestamp for record in self.model.queue(topic, queue_id)}
            for timestamp in sorted({time + change for time in times for change in (-1, 0, 1)})[:40]:
                for boundary in Boundary:
                    expected = self.model.offset_by_time(topic, queue_id, timestamp, boundary)
                    assert store.offset_by_time(topic, queue_id, timestamp, boundary) == expected

    def check_ids(self, store: MessageStore) -> None:
        for record in self.model.records:
            assert store.look_up_id(record.msg_id) == record
            assert store.look_up(record.physical_offset) == record
        assert store.look_up(self.model.end) is None

    def check_keys(self, store: MessageStore) -> None:
        for topic, key in self.model.topics_and_keys():
            expected = self.model.query(topic, key, 0, 2**63 - 1, QUERY_LIMIT)
            assert store.query(topic, key, max_messages=QUERY_LIMIT) == expected
            assert store.query(topic, key, max_messages=2) == expected[-2:]
            if expected:
                begin, end = expected[0].store_timestamp, expected[-1].store_timestamp
                for low, high in ((begin, end), (begin + 1, end), (begin, end - 1), (end, end)):
                    assert store.query(topic, key, low, high, QUERY_LIMIT) == (
                        self.model.query(topic, key, low, high, QUERY_LIMIT)
                    )

    def check_log(self) -> None:
        """The closed store's log holds exactly the records, next to each other, with a filler at each file's end."""
        found: list[int] = []
        for path in sorted((self.root / "commitlog").iterdir()):
            data, base = path.read_bytes(), int(path.name)
            rows, end, reason = kernels.walk(data, base, 0, len(data), True, None, 1000)
            found += rows["physical_offset"].tolist()
            last = base // FILE_SIZE == self.model.end // FILE_SIZE
            assert Reason(reason) is (Reason.UNWRITTEN if last else Reason.BLANK)
            assert not any(data[end + (0 if last else 8) :])
        assert found == [record.physical_offset for record in self.model.records]

    def finish(self) -> None:
        self.check(self.store)
        with self.open(read_only=True) as beside:  # while the other one is open
            self.check(beside)
        self.store.close()
        if self.model.records:
            self.check_log()
        before = contents(self.root)
        with self.open(read_only=True) as alone:
            self.check(alone)
        assert contents(self.root) == before


def read(store: MessageStore, topic: str, queue_id: int, tags: str | None = None) -> list[Any]:
    found: list[Any] = []
    offset = 0
    while True:
        page = store.get(topic, queue_id, offset, tags=tags)
        assert not page.damaged
        found += page.messages
        if page.status is GetStatus.OFFSET_OVERFLOW_ONE:
            return found
        assert page.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
        assert page.next_begin_offset > offset
        offset = page.next_begin_offset


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of stores are made here, and nothing depends on the disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("twin", BY_TWIN)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(changes=SETTINGS, steps=HISTORIES)
def test_what_is_put_is_what_is_got(twin: str, changes: dict[str, Any], steps: list[tuple[str, Any, int]]) -> None:
    with running_on(twin), scratch() as folder:
        history = History(folder, changes)
        try:
            for step in steps:
                history.step(*step)
            history.finish()
        finally:
            history.store.close()
