"""Records whose topic or properties lost a sector to a power cut, though every check of theirs passes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from support.stores import StoreHome

from penstock.format import kernels
from penstock.format.checkpoint import Checkpoint
from penstock.format.constants import SECTOR_SIZE as SECTOR
from penstock.format.kernel_row_types import Reason
from penstock.format.record import Record, encode_record
from penstock.format.sys_flag import TRANSACTION_PREPARED
from penstock.store import Message, MessageStore, PutStatus, encode_message

pytestmark = pytest.mark.usefixtures("kernels_name")


def log_of(*records: Record) -> tuple[bytearray, kernels.Rows]:
    """Records one behind the other, and the rows of a walk over them."""
    log = bytearray()
    for record in records:
        log += encode_record(Record(**{**_fields(record), "physical_offset": len(log)}))
    data = bytearray(8192)
    data[: len(log)] = log
    return data, rows_of(data)


def _fields(record: Record) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def rows_of(data: bytearray) -> kernels.Rows:
    return kernels.walk(data, 0, 0, len(data), True, None, 100)[0]


def record_ending_its_topic_at(position: int, properties: dict[str, str]) -> Record:
    """Alone at the start of a log, with its topic's last byte just before a position."""
    return Record(topic="T", body=b"b" * (position - 90), properties=properties)


def test_a_whole_record_is_not_torn() -> None:
    data, rows = log_of(*(Record(topic="T", body=b"b" * size, properties={"a": "x" * 700}) for size in range(300, 310)))
    assert len(rows) == 10
    assert kernels.first_torn(memoryview(data), 0, rows) == -1


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_properties_without_one_of_their_sectors_are_torn(lost: int) -> None:
    data, rows = log_of(Record(topic="T", body=b"b"), Record(topic="T", body=b"b" * 100, properties={"a": "x" * 1700}))
    data[lost * SECTOR : (lost + 1) * SECTOR] = bytes(SECTOR)
    assert (rows_of(data) == rows).all(), "no check of the record notices"
    assert kernels.first_torn(memoryview(data), 0, rows) == 1
    ends_at_it = (int(rows["size"][0]), Reason.UNWRITTEN, int(rows["store_timestamp"][0]))
    assert kernels.find_valid_end(data, 0, 0, len(data), True, 0, 0) == ends_at_it


def test_only_what_ends_after_the_synced_offset_and_is_not_older_than_the_synced_time_is_doubted() -> None:
    data, _ = log_of(*(Record(topic="T", body=b"b", properties={"a": "x" * 1500}, store_timestamp=7) for _ in "123"))
    for sector in (2, 5):
        data[sector * SECTOR : (sector + 1) * SECTOR] = bytes(SECTOR)
    rows = rows_of(data)
    size = int(rows["size"][0])
    assert [kernels.first_torn(data, 0, rows, *doubt) for doubt in ((0, 7), (size - 1, 0), (size, 0))] == [0, 0, 1]
    assert [kernels.first_torn(data, 0, rows, *doubt) for doubt in ((0, 8), (2 * size, 0), (2**63 - 1, 0))] == [-1] * 3
    ends = [kernels.find_valid_end(data, 0, 0, 3 * size, True, *doubt)[0] for doubt in ((0, 0), (size, 7), (0, 8), ())]
    assert ends == [0, size, 3 * size, 3 * size]


def test_a_record_whose_last_bytes_did_not_make_it_is_torn() -> None:
    record = record_ending_its_topic_at(SECTOR - 10, {"a": "x" * 20})
    data, rows = log_of(record, Record(topic="T", body=b"next"))
    end = int(rows["size"][0])
    data[SECTOR:end] = bytes(end - SECTOR)
    assert kernels.first_torn(memoryview(data), 0, rows) == 0


@pytest.mark.parametrize("over", [0, 1, 2])
def test_the_zero_length_of_no_properties_is_no_loss(over: int) -> None:
    """It may lie behind a sector's end, whole or half."""
    data, rows = log_of(record_ending_its_topic_at(SECTOR - over, {}), Record(topic="T", body=b"next"))
    assert len(rows) == 2
    assert kernels.first_torn(memoryview(data), 0, rows) == -1


def test_rows_outside_the_data_are_refused() -> None:
    data, rows = log_of(Record(topic="T", body=b"b" * 1000))
    with pytest.raises(ValueError, match="outside the data"):
        kernels.first_torn(data[:500], 0, rows)


def test_nothing_is_torn_where_there_is_nothing() -> None:
    assert kernels.first_torn(memoryview(bytearray(100)), 0, rows_of(bytearray(100))) == -1


@pytest.mark.parametrize("followed", [False, True], ids=["last", "with others behind it"])
def test_a_start_serves_no_torn_record_and_keeps_its_bytes(home: StoreHome, followed: bool) -> None:
    with home.open() as store:
        assert store.put(Message("T", b"before")).ok
        torn = store.put(Message("T", b"b" * 100, properties={"a": "x" * 1000}))
        if followed:
            assert store.put(Message("T", b"after", keys="after")).ok
    (home.path / "penstock/dispatched.json").unlink()  # nothing says that this was on disk
    (home.path / "checkpoint").unlink()
    position = -(-(torn.physical_offset + 300) // SECTOR) * SECTOR
    home.write(home.log_files()[0], position, bytes(SECTOR))
    home.mark_crashed()
    left = home.log_files()[0].read_bytes()[torn.physical_offset : torn.end_offset]
    store = home.open()
    assert home.bodies(store, "T") == [b"before", b"after"][: 1 + followed]
    assert store.look_up(torn.physical_offset) is None
    assert len(store.report.damage) == followed
    assert [kept.read_bytes().rstrip(b"\0") for kept in home.kept() if "commitlog" in kept.name] == [left.rstrip(b"\0")]
    if followed:
        assert [hit.body for hit in store.query("T", "after")] == [b"after"]
    assert store.put(Message("T", b"more")).queue_offset == 2 + followed - (not followed)
    store.close()
    again = home.open()
    assert home.bodies(again, "T")[-1] == b"more"
    assert np.array_equal([each.size for each in again.report.damage], [torn.size] * followed)


# -- what was acknowledged is believed -------------------------------------------------------------------------

ZEROS = {"at the end": "v\0", "many": "v" + "\0" * 1100 + "v", "many at the end": "v" + "\0" * 1100}


def put_as_rocketmq_would(store: MessageStore, count: int, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts messages with properties that Penstock refuses, but RocketMQ, or a version before this one, accepts."""
    with monkeypatch.context() as patch:
        patch.setattr(encode_message, "check_no_zeros", lambda encoded: None)
        for number in range(count):
            assert store.put(Message("T", b"%d" % number, properties={"p": value})).ok


@pytest.mark.parametrize("crashed", [False, True], ids=["closed", "killed after a sync"])
@pytest.mark.parametrize("value", ZEROS.values(), ids=ZEROS)
def test_a_start_serves_every_message_that_was_on_disk(
    home: StoreHome, value: str, crashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3000 if value == "v\0" else 300  # few of the short ones end at the start of a sector
    with home.open(enabled_append_prop_crc=False) as store:
        put_as_rocketmq_would(store, count, value, monkeypatch)
    if crashed:
        home.mark_crashed()
    store = home.open()
    assert home.bodies(store, "T") == [b"%d" % number for number in range(count)]
    assert (store.report.damage, store.report.torn_bytes, home.kept()) == ([], 0, [])


def test_a_checkpoint_alone_vouches_for_older_messages(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    with home.open(enabled_append_prop_crc=False) as store:
        put_as_rocketmq_would(store, 100, "v\0", monkeypatch)
        home.clock.now += 1
        assert store.put(Message("T", b"last")).ok
    (home.path / "penstock/dispatched.json").unlink()  # as if RocketMQ had owned the store
    home.mark_crashed()
    assert len(home.bodies(home.open(), "T")) == 101


def test_a_checkpoint_newer_than_the_log_vouches_for_nothing(home: StoreHome) -> None:
    with home.open(enabled_append_prop_crc=False) as store:
        torn = store.put(Message("T", b"b" * 100, properties={"a": "x" * 1000}))
    (home.path / "penstock/dispatched.json").unlink()
    home.write(home.path / "checkpoint", 0, Checkpoint(2**60, 2**60, 2**60).pack())
    home.write(home.log_files()[0], -(-(torn.physical_offset + 300) // SECTOR) * SECTOR, bytes(SECTOR))
    home.mark_crashed()
    assert home.bodies(home.open(), "T") == []


@pytest.mark.parametrize("value", ["v\0", "v" + "\0" * 511 + "v"])
@pytest.mark.parametrize("has_crc", [False, True])
def test_properties_that_look_like_a_lost_sector_are_refused_on_every_way_in(
    home: StoreHome, value: str, has_crc: bool
) -> None:
    store = home.open(enabled_append_prop_crc=has_crc)
    end = store.put(Message("T", b"first")).end_offset
    bad = [
        Message("T", b"", properties={"p": value}),
        Message("T", b"", property_text="p\x01" + value),
        Message("T", b"", property_text="q\x01v" + "\0" * 511 + "\x02"),
        Message("T", b"", tags=value),
        Message("T", b"", keys=value),
        Message("T", b"", properties={"p": value}, delay_level=0, wait=True, sys_flag=TRANSACTION_PREPARED),
    ]
    for message in bad:
        assert store.put(message).status is PutStatus.MESSAGE_ILLEGAL
        assert store.append(message).status is PutStatus.MESSAGE_ILLEGAL
        assert store.put_async(message).result().status is PutStatus.MESSAGE_ILLEGAL
        assert store.put_many([Message("T", b"fine"), message]).status is PutStatus.MESSAGE_ILLEGAL
    table = pa.record_batch({"topic": ["T"], "body": [b""], "tags": [value]})
    assert store.put_arrow(table).status is PutStatus.MESSAGE_ILLEGAL
    assert store.log.queue.wrote_offset == end
    fine = {"p\0": "a\0b" + "\0" * 510 + "c"}
    assert store.put(Message("T", b"", properties=fine)).ok, "NUL in between is data"
    assert (
        store.put_arrow(pa.record_batch({"topic": ["T"], "body": [b""], "tags": ["a\0b" + "\0" * 510 + "c"]})).count
        == 1
    )
