"""Arrow record batches into the store: what is stored, in which files, when it is visible and when it is safe."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.arrow import batch_of, numbered
from support.disks import FaultyFiles
from support.stores import StoreHome

from penstock.format import kernels
from penstock.format.kernel_row_types import Reason
from penstock.format.record import Record
from penstock.store import GetStatus, Message, MessageStore, PutStatus
from penstock.store import commit_log as commit_log_module

pytestmark = pytest.mark.usefixtures("kernels_name")


def log_records(store: MessageStore) -> list[Record]:
    """All records, read one by one."""
    records, at = [], 0
    while at < store.log.max_offset:
        record = store.look_up(at)
        if record is None:  # a filler: on to the next file
            at = store.log.roll_next(at)
        else:
            records.append(record)
            at += record.size
    return records


# -- what is stored ------------------------------------------------------------------------------------------


def test_rows_are_stored_as_messages_put_one_by_one_would_be_to_the_byte(home: StoreHome, tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {
        "topic": ["orders", "T", "orders", "SCHEDULE_TOPIC_XXXX", "T", "orders"],
        "body": [b"one", b"", b"x" * 3000, b"4", b"\x00", b"six"],
        "keys": [["k1", "k2"], None, [], ["ключ"], [""], ["a", ""]],
        "tags": ["paid", None, "", "中文", "t", "Aa"],
        "properties": [
            [("UNIQ_KEY", "u1"), ("a", "1")],
            None,
            [("TAGS", "mine"), ("empty", "")],
            [("DELAY", "4")],
            [("KEYS", "own"), ("x", "\x01"), ("WAIT", "false")],
            [("REAL_QID", "9"), ("DELAY", "2"), ("b", "2")],
        ],
        "queue_id": [0, 3, None, 1, 2**31 - 1, 5],
        "delay_level": [None, 3, 0, 0, -1, 25],
        "flag": [0, -1, 2**31 - 1, None, 7, 0],
        "born_timestamp": [None, 1, 1_600_000_000_001, 0, 2**63 - 1, 5],
    }
    by_arrow = home.open()
    result = by_arrow.put_arrow(batch_of(**rows))
    other = type(home)(tmp_path / "other")
    run_serially = other.open()
    answers = []
    for number in range(6):
        fields = {name: values[number] for name, values in rows.items() if values[number] is not None}
        fields["properties"] = dict(fields.get("properties", []))
        answers.append(run_serially.put(Message(**fields)))
    assert result.ok, result.reason
    assert result.count == 6
    assert result.physical_offset == 0
    assert result.physical_offsets.tolist() == [answer.physical_offset for answer in answers]
    assert result.queue_offsets.tolist() == [answer.queue_offset for answer in answers]
    assert {answer.store_timestamp for answer in answers} == {result.store_timestamp}
    end = by_arrow.log.max_offset
    assert run_serially.log.max_offset == end
    assert home.log_files()[0].read_bytes()[:end] == other.log_files()[0].read_bytes()[:end]
    other.close_all()


def test_stored_rows_are_found_in_their_queues_and_by_their_keys(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("orders", b"before", queue_id=1))
    batch = batch_of(
        topic=["orders"] * 4, body=[b"a", b"b", b"c", b"d"], queue_id=[1, 0, 1, 0], keys=["x", "y", "x", ""]
    )
    assert store.put_arrow(batch).queue_offsets.tolist() == [1, 0, 2, 1]
    assert store.put(Message("orders", b"after", queue_id=1)).queue_offset == 3
    assert home.bodies(store, "orders", 1) == [b"before", b"a", b"c", b"after"]
    assert home.bodies(store, "orders", 0) == [b"b", b"d"]
    assert [record.body for record in store.query("orders", "x")] == [b"a", b"c"]


def test_stored_rows_are_there_after_a_restart_and_after_a_crash(home: StoreHome) -> None:
    store = home.open()
    assert store.put_arrow(numbered(50)).ok
    store.close()
    home.mark_crashed()
    store = home.open()
    assert not store.report.damage
    assert [int(body) for body in home.bodies(store, "T")] == list(range(50))
    assert store.put_arrow(numbered(1)).queue_offsets.tolist() == [50]


def test_a_delayed_row_waits_in_its_levels_queue(home: StoreHome) -> None:
    store = home.open()
    result = store.put_arrow(batch_of(topic=["T", "T"], body=[b"now", b"later"], queue_id=[4, 4], delay_level=[0, 3]))
    assert result.queue_offsets.tolist() == [0, 0]
    (delayed,) = home.read_queue(store, "SCHEDULE_TOPIC_XXXX", 2)
    assert delayed.properties == {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "4"}
    assert home.bodies(store, "T", 4) == [b"now"]


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("topic", ["a", "b", "a"], pa.large_string()),
        ("topic", ["a", "b", "a"], pa.string_view()),
        ("topic", ["a", "b", "a"], pa.dictionary(pa.int8(), pa.string())),
        ("topic", ["a", "b", "a"], pa.dictionary(pa.uint64(), pa.large_string())),
        ("body", [b"1", b"2", b"3"], pa.large_binary()),
        ("body", [b"1", b"2", b"3"], pa.binary_view()),
        ("body", [b"1", b"2", b"3"], pa.binary(1)),
        ("body", ["1", "2", "3"], pa.string()),
        ("tags", ["x", None, "y"], pa.large_string()),
        ("tags", ["x", None, "y"], pa.dictionary(pa.int32(), pa.string())),
        ("tags", [None, None, None], pa.null()),
        ("keys", ["k", None, "m n"], pa.large_string()),
        ("keys", [["k"], None, ["m", "n"]], pa.large_list(pa.large_string())),
        ("keys", [["k", "l"], None, ["m", "n"]], pa.list_(pa.string(), 2)),
        ("properties", [[("a", "b")], None, []], pa.map_(pa.large_string(), pa.large_string())),
        ("properties", [None, None, None], pa.null()),
        ("queue_id", [1, None, 3], pa.int64()),
        ("queue_id", [1, 2, 3], pa.uint8()),
        ("delay_level", [0, None, 0], pa.int32()),
        ("flag", [-5, None, 5], pa.int16()),
        ("born_timestamp", [1, None, 3], pa.int64()),
    ],
)
def test_a_column_may_have_any_type_that_holds_the_same_values(
    name: str, values: list[Any], kind: pa.DataType, home: StoreHome
) -> None:
    store = home.open()
    columns: dict[str, Any] = {"topic": ["a", "b", "a"], "body": [b"1", b"2", b"3"]}
    result = store.put_arrow(batch_of(**columns | {name: pa.array(values, kind)}))
    assert result.ok, result.reason
    records = log_records(store)
    assert [record.topic for record in records] == ["a", "b", "a"]
    assert [record.body for record in records] == [b"1", b"2", b"3"]
    if name in ("tags", "queue_id", "flag"):
        assert [getattr(record, name) or None for record in records] == values
    if name == "keys":
        assert records[0].keys[0] == "k"
        assert records[2].keys == ("m", "n")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_born_timestamp_may_be_a_time(unit: str, home: StoreHome) -> None:
    store = home.open()
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    times = pa.array([moment, None], pa.timestamp(unit, "UTC"))
    assert store.put_arrow(batch_of(topic=["T", "T"], body=[b"", b""], born_timestamp=times)).ok
    born = [record.born_timestamp for record in log_records(store)]
    assert born == [int(moment.timestamp() * 1000), home.clock.now]


def test_a_part_of_a_batch_stores_its_own_rows(home: StoreHome) -> None:
    store = home.open()
    whole = batch_of(
        topic=pa.array(["a", "b", "c", "d", "b"]).dictionary_encode(),
        body=[b"0", b"1", b"2", b"3", b"4"],
        keys=[["no"], None, ["k2", None, "l2"], ["k3"], ["no"]],
        tags=[None, "t1", None, "t3", None],
        properties=[[("no", "no")], [("p1", "v1")], None, [("p3", "v3"), ("q3", "w3")], None],
        queue_id=[9, 1, None, 3, 9],
    )
    assert store.put_arrow(whole.slice(1, 3)).ok
    records = log_records(store)
    assert [(r.topic, r.body, r.keys, r.tags, r.queue_id) for r in records] == [
        ("b", b"1", (), "t1", 1),
        ("c", b"2", ("k2", "l2"), "", 0),
        ("d", b"3", ("k3",), "t3", 3),
    ]
    assert [list(record.properties) for record in records] == [["p1", "TAGS"], ["KEYS"], ["p3", "q3", "KEYS", "TAGS"]]


def test_a_batch_without_rows_stores_nothing_and_is_fine(home: StoreHome) -> None:
    store = home.open()
    result = store.put_arrow(numbered(0))
    assert (result.ok, result.count, result.physical_offset, store.log.max_offset) == (True, 0, -1, 0)


def test_a_store_on_an_ipv6_host_stores_rows_with_it(home: StoreHome) -> None:
    store = home.open(broker_ip1="::1")
    assert store.put_arrow(numbered(2)).ok
    assert [record.store_host for record in log_records(store)] == ["[::1]:10911"] * 2


# -- files ---------------------------------------------------------------------------------------------------


def test_a_batch_that_fits_a_file_is_never_split(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096)
    assert store.put_arrow(numbered(20, 8)).ok
    result = store.put_arrow(numbered(30, 8))
    assert result.physical_offset == 4096, "the batch begins the next file"
    assert result.physical_offsets[-1] < 8192
    assert len(home.bodies(store, "T")) == 50


def test_a_batch_that_just_fills_a_file_fits_it(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096)
    assert store.put_arrow(batch_of(topic=["T"], body=[bytes(4096 - 8 - 92)])).physical_offset == 0
    assert store.put_arrow(batch_of(topic=["T"] * 2, body=[bytes(2044 - 92)] * 2)).physical_offset == 4096


def test_a_larger_batch_is_split_where_files_end(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096)
    assert store.put(Message("T", b"first")).ok
    result = store.put_arrow(numbered(200, 8))
    assert result.ok, result.reason
    assert result.count == 200
    assert result.queue_offsets.tolist() == list(range(1, 201))
    assert [record.physical_offset for record in log_records(store)][1:] == result.physical_offsets.tolist()
    assert result.physical_offset == 97, "the rest of the first file is used"
    assert len(home.log_files()) >= 5
    assert [int(body) for body in home.bodies(store, "T")[1:]] == list(range(200))
    assert store.put(Message("T", b"last")).queue_offset == 201


def test_a_disk_that_is_full_in_the_middle_leaves_whole_pieces_and_says_how_many_rows(
    home: StoreHome, disk: FaultyFiles
) -> None:
    store = home.open(files=disk, mapped_file_size_commit_log=4096, pre_allocate_files=False)

    def full(path: Path) -> None:
        if path.name == f"{8192:020d}":
            raise OSError(errno.ENOSPC, "No space left on device")

    disk.before_allocate = full
    result = store.put_arrow(numbered(200, 8))
    assert result.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert result.reason.startswith(f"only the first {result.count} rows are stored: ")
    assert 0 < result.count == len(result.physical_offsets) < 200
    assert [int(body) for body in home.bodies(store, "T")] == list(range(result.count))
    disk.before_allocate = lambda path: None
    assert store.put_arrow(numbered(1)).queue_offsets.tolist() == [result.count]


def test_a_batch_for_which_there_is_no_file_at_all_is_refused(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, pre_allocate_files=False)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    disk.before_allocate = full
    result = store.put_arrow(numbered(3))
    assert (result.status, result.count) == (PutStatus.CREATE_MAPEDFILE_FAILED, 0)


def test_rows_go_through_the_transient_pool_too(home: StoreHome) -> None:
    store = home.open(transient_store_pool_enable=True, transient_store_pool_size=2)
    assert store.put_arrow(numbered(100)).ok
    store.close()
    assert len(home.bodies(home.open(), "T")) == 100


# -- visibility and safety -----------------------------------------------------------------------------------


def test_nothing_of_a_batch_is_seen_before_all_of_it_is_written(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = home.open()
    assert store.put(Message("T", b"before")).ok
    seen: list[tuple[int, int]] = []
    really_publish = kernels.publish

    def look_then_publish(out: memoryview, at: int, size: int) -> None:
        rows, _, reason = kernels.walk(out, 0, 0, len(out), True, None, 1000)
        seen.append((len(rows), reason))
        really_publish(out, at, size)

    monkeypatch.setattr(commit_log_module.kernels, "publish", look_then_publish)
    assert store.put_arrow(numbered(50)).ok
    assert seen == [(1, Reason.UNWRITTEN)]
    assert len(home.bodies(store, "T")) == 51


def test_puts_of_other_threads_and_batches_do_not_disturb_each_other(home: StoreHome) -> None:
    store = home.open()
    batches, puts = 20, 300

    def put_batches() -> None:
        for _ in range(batches):
            assert store.put_arrow(numbered(50)).ok

    def put_messages() -> None:
        for number in range(puts):
            assert store.put(Message("T", b"%d" % number)).ok

    threads = [threading.Thread(target=work) for work in (put_batches, put_messages, put_batches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    offsets = [record.queue_offset for record in home.read_queue(store, "T")]
    assert offsets == list(range(2 * batches * 50 + puts))


@pytest.fixture
def sync_count(disk: FaultyFiles) -> Callable[[], int]:
    """How often the log was synced since the last call."""
    syncs: list[Path] = []
    disk.before_sync = lambda path: syncs.append(path) if path.parent.name == "commitlog" else None

    def count() -> int:
        found = len(syncs)
        syncs.clear()
        return found

    return count


def test_a_batch_waits_for_one_flush_and_is_seen_after_it(
    home: StoreHome, disk: FaultyFiles, sync_count: Callable[[], int]
) -> None:
    store = home.open(files=disk, sync=True)
    assert store.put(Message("T", b"makes the file")).ok
    sync_count()
    assert store.put_arrow(numbered(500)).ok
    assert sync_count() == 1
    assert store.log.queue.flushed_where == store.log.max_offset
    assert store.get_arrow("T", 0, 0).batch.num_rows == 501


def test_a_batch_whose_flush_is_late_is_stored_and_says_so(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, sync=True, sync_flush_timeout=50)
    go_on = threading.Event()
    disk.before_sync = lambda path: go_on.wait(60) and None
    try:
        store.put_async(Message("other", b"the flush thread syncs for it, so that the batch does not"))
        result = store.put_arrow(numbered(3))
        assert result.status is PutStatus.FLUSH_DISK_TIMEOUT
        assert result.count == 3
        assert store.get_arrow("T", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
        assert store.log_arrow().batch.num_rows == 0, "what is not on disk is not shown"
    finally:
        go_on.set()


def test_a_batch_whose_sync_failed_is_an_error(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, sync=True)

    def broken(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk.before_sync = broken
    result = store.put_arrow(numbered(3))
    assert (result.status, result.count) == (PutStatus.UNKNOWN_ERROR, 0)
    assert store.put_arrow(numbered(1)).status is PutStatus.SERVICE_NOT_AVAILABLE


def test_a_batch_in_which_no_row_wants_to_wait_does_not(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, sync=True)
    go_on = threading.Event()
    disk.before_sync = lambda path: go_on.wait(60) and None
    try:
        patient = [("WAIT", "false")]
        assert store.put_arrow(batch_of(topic=["T"] * 2, body=[b"", b""], properties=[patient, patient])).ok
    finally:
        go_on.set()


def test_batches_are_counted(home: StoreHome) -> None:
    store = home.open()
    store.put_arrow(numbered(5))
    store.put_arrow(batch_of(topic=[""], body=[b""]))
    figures = store.figures()
    assert (figures.put_total, figures.put_bytes, figures.put_failed) == (5, store.log.max_offset, 1)
    assert sum(figures.put_latency_ms.values()) == 6
