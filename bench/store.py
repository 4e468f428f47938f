"""The suite `store`: the embeddable store beside Apache RocketMQ's `DefaultMessageStore`.

Both sides have the same settings and get the same messages: one key, one tag, four queues, each created inside the
measured time. The settings are RocketMQ's defaults except for a smaller index, and for `osPageCacheBusyTimeOutMills`,
so that a slow disk shows as time and not as refused puts. A store that is written to is new in each round. Stores that
are only read are filled once, by their own side, and opened for each round.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bench.processes import JavaStore, class_path, java_store
from bench.report import java_versions
from bench.run import JAVA, OURS, SIZE_IDS, SIZE_NAMES, Goal, Row, Run, Stopwatch, Task, Unit
from bench.workspace import GIB, MIB, BenchFailed
from penstock.clock import now_ms
from penstock.format.index_layout import IndexGeometry
from penstock.format.scan import Scan, ScanBatch
from penstock.store import Message, MessageStore, PutResult, Settings
from penstock.store.consume_queues import ConsumeQueues, DerivedFiles
from penstock.store.dispatch import Dispatcher
from penstock.store.files.file_io import Files
from penstock.store.index import Index
from penstock.store.running_flags import RunningFlags

if TYPE_CHECKING:
    import pyarrow as pa

KILO, HUNDRED = 1024, 100
TOPIC, PREFIX, TAG, QUEUES = "bench", "order_", "TagA", 4
LIST = 32
PAGE = 32
IN_FLIGHT = 16
BATCH_ROWS = 8192
KEYS_AT_ONCE = 1000
SAMPLE_MS = 5
_QUEUE_FILES = 64 * MIB
"""More than the consume queues of any store here take."""


class Sizes(msgspec.Struct, frozen=True):
    """Numbers of messages are multiples of 32, so that lists of 32 store the same ones."""

    log_file: int
    index: IndexGeometry
    messages: dict[int, int]
    """Messages of a store, by the size of their bodies."""
    sync_messages: int
    sync_messages_in_flight: int
    got: int
    """Messages that a round of get reads."""
    queries: int
    warm_up: int
    """Messages that Java puts, lists, gets and queries before anything counts."""

    @property
    def disk_need(self) -> int:
        """Four stores that are read (two sizes, two sides), and one being written, with one log file ahead."""
        return 5 * (self.log_file + self.index.file_size + _QUEUE_FILES) + self.log_file


FULL = Sizes(
    log_file=GIB,
    index=IndexGeometry(1_000_000, 4_000_000),
    messages={KILO: 400_000, HUNDRED: 1_000_000},
    sync_messages=1_000,
    sync_messages_in_flight=8_000,
    got=400_000,
    queries=40_000,
    warm_up=400_000,
)
QUICK = Sizes(
    log_file=64 * MIB,
    index=IndexGeometry(10_000, 40_000),
    messages={KILO: 8_000, HUNDRED: 8_000},
    sync_messages=32,
    sync_messages_in_flight=128,
    got=8_000,
    queries=500,
    warm_up=8_000,
)


def settings_of(log_file: int, index: IndexGeometry, **more: object) -> dict[str, object]:
    """Settings by RocketMQ's names, for both sides."""
    return {
        "mappedFileSizeCommitLog": log_file,
        "maxHashSlotNum": index.slots,
        "maxIndexNum": index.items,
        "osPageCacheBusyTimeOutMills": 60_000,
        **more,
    }


def pairs_of(settings: dict[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


class StoreSuite:
    """See the module."""

    name = "store"
    summary = "The embeddable store: put, dispatch, get, query by key, walk."
    sides = ("Penstock", "Java")

    def __init__(self) -> None:
        self._stores: Stores | None = None

    def need(self, quick: bool) -> int:
        return (QUICK if quick else FULL).disk_need

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        self._stores = Stores(folder, QUICK if quick else FULL)
        return tasks(self._stores)

    @contextlib.contextmanager
    def peer(self, folder: Path, quick: bool) -> Iterator[dict[str, str]]:
        assert self._stores is not None
        jars = class_path()
        with java_store(jars) as peer:
            self._stores.java = peer
            self._stores.warm_up()
            yield java_versions(jars)

    def close(self) -> None:
        """Our side runs in this process."""


def tasks(at: Stores) -> list[Task]:
    """The table, in its order."""
    one, bodies = Goal("ratio at least", 1), (KILO, HUNDRED)
    rate: Unit = "messages/s"

    def task(row: Row, ours: Callable[[], Run], java: Callable[[], Run] | None = None, missing: str = "") -> Task:
        group = "arrow" if row.name.startswith("log-") else row.name.partition("-")[0]
        return Task(group, (row,), {OURS: ours} | ({JAVA: java} if java else {}), missing)

    found = []
    for threads, who in ((1, "one thread"), (2, "2 threads")):
        for body in bodies:
            row = Row(f"put-{SIZE_IDS[body]}-{threads}t", f"put, {SIZE_NAMES[body]}, {who}", rate)
            goal = Goal("ratio at least", 0.8) if body == KILO else one
            row = msgspec.structs.replace(row, goal=goal if threads == 1 else None)
            count = at.sizes.messages[body]
            how = {"size": body, "count": count, "threads": threads}
            found.append(task(row, partial(at.put, body, count, threads), partial(at.java_put, "put", False, **how)))
    for body in bodies:
        row = Row(f"lists-{SIZE_IDS[body]}", f"put lists of {LIST}, {SIZE_NAMES[body]}", rate)
        found.append(task(row, partial(at.put_lists, body), partial(at.java_batches, body)))
    for built, suffix, how_built in ((True, "", ""), (False, "-given", ", columns given")):
        for body in bodies:
            title = f"put Arrow batches, {SIZE_NAMES[body]}{how_built} (Java: batches of {LIST})"
            row = Row(f"arrow-{SIZE_IDS[body]}{suffix}", title, rate, Goal("ratio at least", 2) if built else None)
            ours = partial(at.put_arrow, body, built)
            found.append(task(row, ours, partial(at.java_batches, body), lacking("put_arrow")))
    for threads, who, count, goal in (
        (1, "one thread", at.sizes.sync_messages, Goal("ratio at least", 1.2)),
        (16, "16 threads", at.sizes.sync_messages_in_flight, one),
    ):
        row = Row(f"sync-1k-{threads}t", f"put with sync flush, 1 KB, {who}", rate, goal)
        how = {"size": KILO, "count": count, "threads": threads}
        ours = partial(at.put, KILO, count, threads, sync=True)
        found.append(task(row, ours, partial(at.java_put, "put", True, **how)))
    row = Row("sync-1k-in-flight", f"put with sync flush, 1 KB, {IN_FLIGHT} in flight", rate, one)
    how = {"size": KILO, "count": at.sizes.sync_messages_in_flight, "in_flight": IN_FLIGHT}
    found.append(task(row, at.put_in_flight, partial(at.java_put, "in-flight", True, **how)))

    behind = "dispatch behind one producer, 100 B"
    within = Goal("at most", 0.5)
    done = Row("dispatch-caught-up", f"{behind}: done after the last put", "s", within, True, has_ratio=False)
    lag = Row("dispatch-lag", f"{behind}: most bytes", "bytes", less_is_better=True, figure="behind")
    found.append(Task("dispatch", (lag, done), {OURS: at.lag, JAVA: at.java_lag}))
    alone = Row("dispatch-alone", "dispatch alone, 100 B", rate, figure="alone")
    rebuild = Row("dispatch-rebuild", "open with queues and index lost, 100 B", rate)
    found.append(Task("dispatch", (alone, rebuild), {OURS: at.rebuild, JAVA: at.java_rebuild}))

    for kind, goal in (("raw", one), ("decoded", Goal("ratio at least", 0.5))):
        for body in bodies:
            row = Row(f"get-{kind}-{SIZE_IDS[body]}", f"get {kind} pages of {PAGE}, {SIZE_NAMES[body]}", rate, goal)
            decode = kind == "decoded"
            found.append(task(row, partial(at.get, body, decode), partial(at.java_get, body, decode)))
    for name, title, target, look_up in (
        ("single", "one at a time", 0.5, at.query_single),
        ("many", f"{KEYS_AT_ONCE:,} at once", 5, at.query_many),
        ("many-messages", f"{KEYS_AT_ONCE:,} at once, messages decoded", 1, at.query_many_messages),
    ):
        row = Row(f"query-{name}", f"query by key, {title}", "queries/s", Goal("ratio at least", target))
        found.append(task(row, partial(at.query, look_up), at.java_query))
    for crc, prefix, how_checked in ((True, "crc-", "with CRC"), (False, "", "without CRC")):
        for body in bodies:
            title = f"walk {how_checked}, {SIZE_NAMES[body]}, one core"
            row = Row(f"walk-{prefix}{SIZE_IDS[body]}", title, "GB/s", Goal("at least", 1) if crc else None)
            found.append(task(row, partial(at.walk, body, crc)))
    for body in bodies:
        row = Row(f"log-arrow-{SIZE_IDS[body]}", f"log to Arrow, {SIZE_NAMES[body]}", rate)
        found.append(task(row, partial(at.log_to_arrow, body), missing=lacking("log_arrow")))
    return found


def lacking(method: str) -> str:
    """Why the store cannot do this with Arrow; empty if it can."""
    if not hasattr(MessageStore, method):
        return f"MessageStore has no {method}"
    return "" if importlib.util.find_spec("pyarrow") else "pyarrow is not installed"


def put_all(store: MessageStore, body: bytes, count: int, threads: int = 1) -> Stopwatch:
    """Puts messages; each thread waits for every answer."""
    failed = [0] * threads

    def put_some(thread: int) -> None:
        refused = 0
        for number in range(thread, count, threads):
            message = Message(TOPIC, body, keys=(f"{PREFIX}{number}",), tags=TAG, queue_id=number % QUEUES)
            if not store.put(message).ok:
                refused += 1
        failed[thread] = refused

    workers = [threading.Thread(target=put_some, args=(number,), daemon=True) for number in range(threads)]
    with Stopwatch() as took:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    check(sum(failed), count)
    return took


def check(failed: int, count: int) -> None:
    """A refused put is quick and proves nothing. Raises BenchFailed."""
    if failed:
        raise BenchFailed(f"{failed} of {count} puts were refused")


def build_batch(body: bytes, first: int, count: int) -> pa.RecordBatch:
    """The messages from number `first` on, as columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pa.array(np.arange(first, first + count, dtype=np.int32))
    columns = {
        "topic": pa.repeat(TOPIC, count),
        "body": pa.array([body] * count, pa.binary()),
        "keys": pc.binary_join_element_wise(PREFIX, pc.cast(numbers, pa.string()), ""),
        "tags": pa.repeat(TAG, count),
        "queue_id": pc.bit_wise_and(numbers, pa.scalar(QUEUES - 1, pa.int32())),
    }
    return pa.RecordBatch.from_pydict(columns)


class Stores:
    """The stores of a run, and what both sides do with them: each method is one round of one side."""

    java: JavaStore

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self.sizes = sizes
        self._step = sizes.messages[KILO] // sizes.queries  # so that keys come from all over a store
        self._filled: dict[tuple[str, int], Path] = {}
        self._log_ends: dict[int, int] = {}
        self._made = 0

    # -- stores ----------------------------------------------------------------------------------------------

    def settings(self, sync: bool = False) -> dict[str, object]:
        flush = "SYNC_FLUSH" if sync else "ASYNC_FLUSH"
        return settings_of(self.sizes.log_file, self.sizes.index, flushDiskType=flush)

    def our_settings(self, sync: bool = False) -> Settings:
        return Settings.load(pairs=pairs_of(self.settings(sync)))

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new folder, for one round."""
        self._made += 1
        folder = self._folder / f"scratch-{self._made}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def fresh(self, sync: bool = False) -> Iterator[MessageStore]:
        """A new store of ours."""
        with self.scratch() as folder, MessageStore.open(folder, self.our_settings(sync)) as store:
            yield store

    def filled(self, size: int) -> Path:
        """A closed store of ours with all messages of a size."""
        path = self._filled.get((OURS, size))
        if path is None:
            path = self._filled[OURS, size] = self._folder / f"ours-{size}"
            with MessageStore.open(path, self.our_settings()) as store:
                put_all(store, bytes(size), self.sizes.messages[size])
                self._log_ends[size] = store.log.max_offset
        return path

    def opened(self, size: int) -> MessageStore:
        return MessageStore.open(self.filled(size), self.our_settings())

    @contextlib.contextmanager
    def open_java(self, folder: Path, sync: bool = False) -> Iterator[None]:
        self.java.open(folder, self.settings(sync))
        yield
        self.java.ask("close")

    def filled_java(self, size: int) -> Path:
        """A closed store of Java's with the same messages."""
        path = self._filled.get((JAVA, size))
        if path is None:
            path = self._filled[JAVA, size] = self._folder / f"java-{size}"
            with self.open_java(path):
                self.ask("put", size=size, count=self.sizes.messages[size], threads=1)
        return path

    def ask(self, what: str, **arguments: Any) -> tuple[dict[str, Any], float]:
        """Java does one piece of work on the store it has open: its answer and CPU seconds."""
        return self.java.bench(what, topic=TOPIC, prefix=PREFIX, **arguments)

    def warm_up(self) -> None:
        """Java does a little of everything before anything counts, so that its compiler has seen it."""
        count = self.sizes.warm_up
        with self.scratch() as folder, self.open_java(folder):
            self.ask("put", size=HUNDRED, count=count, threads=1)
            self.ask("batch", size=HUNDRED, count=count, batch=LIST)
            for decode in (False, True):
                self.ask("get", decode=decode, most=count)
            self.ask("query", count=count // 10, step=1)

    # -- put -------------------------------------------------------------------------------------------------

    def put(self, size: int, count: int, threads: int, sync: bool = False) -> Run:
        """`put` in a loop, from one thread or several, into a new store."""
        with self.fresh(sync) as store:
            return _put_run(count, put_all(store, bytes(size), count, threads), store)

    def java_put(self, what: str, sync: bool, **how: int) -> Run:
        with self.scratch() as folder, self.open_java(folder, sync):
            answer, cpu = self.ask(what, **how)
        count = how["count"]
        return Run.of(count / answer["seconds"], {"messages": count, "log bytes": answer["log_bytes"]}, cpu)

    def java_batches(self, size: int) -> Run:
        return self.java_put("batch", False, size=size, count=self.sizes.messages[size], batch=LIST)

    def put_lists(self, size: int) -> Run:
        """`put_many` with lists of 32, each for one queue."""
        body, count, failed = bytes(size), self.sizes.messages[size], 0
        with self.fresh() as store:
            with Stopwatch() as took:
                for first in range(0, count, LIST):
                    queue_id = first // LIST % QUEUES
                    messages = [
                        Message(TOPIC, body, keys=(f"{PREFIX}{number}",), tags=TAG, queue_id=queue_id)
                        for number in range(first, first + LIST)
                    ]
                    if not store.put_many(messages).ok:
                        failed += LIST
            check(failed, count)
            return _put_run(count, took, store)

    def put_arrow(self, size: int, built: bool) -> Run:
        """Batches of 8,192 rows; `built`: the columns are built in the measured time, as Java builds its messages."""
        body, count, failed = bytes(size), self.sizes.messages[size], 0
        pieces = [(first, min(BATCH_ROWS, count - first)) for first in range(0, count, BATCH_ROWS)]
        given = {} if built else {first: build_batch(body, first, rows) for first, rows in pieces}
        with self.fresh() as store:
            with Stopwatch() as took:
                for first, rows in pieces:
                    batch = build_batch(body, first, rows) if built else given[first]
                    if not store.put_arrow(batch).ok:
                        failed += rows
            check(failed, count)
            return _put_run(count, took, store)

    def put_in_flight(self) -> Run:
        """`put_async` with synchronous flush from one thread, 16 answers due at any time."""
        body, count = bytes(KILO), self.sizes.sync_messages_in_flight
        due = threading.Semaphore(IN_FLIGHT)
        refused: list[PutResult] = []

        def answered(answer: Future[PutResult]) -> None:
            if not (result := answer.result()).ok:
                refused.append(result)
            due.release()

        with self.fresh(sync=True) as store:
            with Stopwatch() as took:
                for number in range(count):
                    message = Message(TOPIC, body, keys=(f"{PREFIX}{number}",), tags=TAG, queue_id=number % QUEUES)
                    due.acquire()
                    store.put_async(message).add_done_callback(answered)
                for _ in range(IN_FLIGHT):
                    due.acquire()
            check(len(refused), count)
            return _put_run(count, took, store)

    # -- dispatch --------------------------------------------------------------------------------------------

    def lag(self) -> Run:
        """One producer at full speed; a second thread samples how many bytes dispatch is behind."""
        count, ending, most = self.sizes.messages[HUNDRED], threading.Event(), 0

        def sample(store: MessageStore) -> None:
            nonlocal most
            while not ending.wait(SAMPLE_MS / 1000):
                most = max(most, store.figures().dispatch_behind_bytes)

        with self.fresh() as store:
            sampler = threading.Thread(target=sample, args=(store,), daemon=True)
            sampler.start()
            took = put_all(store, bytes(HUNDRED), count)
            ending.set()
            sampler.join()
            ended = time.perf_counter()
            while store.figures().dispatch_behind_bytes:
                time.sleep(0.001)
            figures = {"behind": float(most), "value": time.perf_counter() - ended}
            return Run(figures, {"messages": count, "log bytes": store.log.max_offset}, took.cpu)

    def java_lag(self) -> Run:
        count = self.sizes.messages[HUNDRED]
        with self.scratch() as folder, self.open_java(folder):
            answer, cpu = self.ask("put", size=HUNDRED, count=count, threads=1, sample=SAMPLE_MS)
        figures = {"behind": float(answer["most_behind"]), "value": answer["dispatched"] - answer["seconds"]}
        return Run(figures, {"messages": count, "log bytes": answer["log_bytes"]}, cpu)

    def rebuild(self) -> Run:
        """Opens a store without queues and index; then dispatches its log once more by the dispatcher alone."""
        path = self.filled(HUNDRED)
        _lose_derived(path)
        with Stopwatch() as opening:
            store = MessageStore.open(path, self.our_settings())
        with store, self.scratch() as folder:
            files, settings = Files(), store.settings
            queues = ConsumeQueues(files, folder / "consumequeue", settings.mapped_file_size_consume_queue)
            index = Index(files, folder / "index", settings.index_geometry, now_ms)
            dispatcher = Dispatcher(store.log, DerivedFiles(queues, index), settings.delay_levels, RunningFlags())
            with Stopwatch() as alone:
                dispatcher.catch_up()
            messages = sum(queue.max_offset for queue in queues)
            queues.close()
            index.close()
        return _rebuilt(messages, alone.seconds, opening.seconds, opening.cpu)

    def java_rebuild(self) -> Run:
        path = self.filled_java(HUNDRED)
        _lose_derived(path)
        answer, cpu = self.ask("rebuild", path=str(path), settings=self.settings())
        return _rebuilt(answer["messages"], answer["dispatch_seconds"], answer["seconds"], cpu)

    # -- get and query ---------------------------------------------------------------------------------------

    def _most(self, size: int) -> int:
        """Messages of each queue that a round of get reads."""
        return min(self.sizes.got, self.sizes.messages[size]) // QUEUES

    def get(self, size: int, decode: bool) -> Run:
        """All four queues, one after the other, in pages of 32."""
        messages = data = 0
        most = self._most(size)
        with self.opened(size) as store, Stopwatch() as took:
            for queue_id in range(QUEUES):
                offset = 0
                while offset < most:
                    page = store.get(TOPIC, queue_id, offset, PAGE)
                    found = len(page.messages) if decode else page.count
                    if not found:
                        break
                    messages += found
                    data += len(page.data)
                    offset = page.next_begin_offset
        return Run.of(messages / took.seconds, {"messages": messages, "bytes": data}, took.cpu)

    def java_get(self, size: int, decode: bool) -> Run:
        with self.open_java(self.filled_java(size)):
            answer, cpu = self.ask("get", decode=decode, most=self._most(size))
        work = {"messages": answer["messages"], "bytes": answer["bytes"]}
        return Run.of(answer["messages"] / answer["seconds"], work, cpu)

    def query(self, look_up: Callable[[MessageStore], int]) -> Run:
        with self.opened(KILO) as store, Stopwatch() as took:
            found = look_up(store)
        return Run.of(self.sizes.queries / took.seconds, {"found": found}, took.cpu)

    def query_single(self, store: MessageStore) -> int:
        return sum(len(store.query(TOPIC, self._key(number))) for number in range(self.sizes.queries))

    def query_many(self, store: MessageStore) -> int:
        """A thousand keys at a time; answers with the messages' positions."""
        return sum(len(store.query_many(TOPIC, keys)[1]) for keys in self._keys())

    def query_many_messages(self, store: MessageStore) -> int:
        """The same; answers with the messages, decoded."""
        return sum(len(store.query_many_messages(TOPIC, keys)[1]) for keys in self._keys())

    def _keys(self) -> Iterator[list[str]]:
        count = self.sizes.queries
        for first in range(0, count, KEYS_AT_ONCE):
            yield [self._key(number) for number in range(first, min(first + KEYS_AT_ONCE, count))]

    def _key(self, number: int) -> str:
        return f"{PREFIX}{number * self._step}"

    def java_query(self) -> Run:
        """One by one in any case."""
        with self.open_java(self.filled_java(KILO)):
            answer, cpu = self.ask("query", count=self.sizes.queries, step=self._step)
        return Run.of(self.sizes.queries / answer["seconds"], {"found": answer["found"]}, cpu)

    # -- the whole log ---------------------------------------------------------------------------------------

    def walk(self, size: int, check_crc: bool) -> Run:
        """Every record of the log's only file, mapped for each round and in the page cache, on one core."""
        path = self.filled(size) / "commitlog" / f"{0:020d}"
        end = self._log_ends[size]
        with Stopwatch() as took, path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            scan = Scan(data, 0, 0, end, check_crc=check_crc)
            messages = sum(len(item.rows) for item in scan if isinstance(item, ScanBatch))
            del scan
        return Run.of(end / took.seconds / 1e9, {"messages": messages, "bytes": end}, took.cpu)

    def log_to_arrow(self, size: int) -> Run:
        """The whole log as record batches with all columns, on one thread."""
        with self.opened(size) as store, Stopwatch() as took:
            batch, offset = store.log_arrow()
            rows = batch.num_rows
            while batch.num_rows:
                batch, offset = store.log_arrow(offset)
                rows += batch.num_rows
        return Run.of(rows / took.seconds, {"messages": rows}, took.cpu)


def _put_run(count: int, took: Stopwatch, store: MessageStore) -> Run:
    return Run.of(count / took.seconds, {"messages": count, "log bytes": store.log.max_offset}, took.cpu)


def _rebuilt(messages: int, alone: float, opened: float, cpu: float) -> Run:
    return Run({"alone": messages / alone, "value": messages / opened}, {"messages": messages}, cpu)


def _lose_derived(store: Path) -> None:
    for folder in ("consumequeue", "index"):
        shutil.rmtree(store / folder)
