"""Records whose topic or properties lost a sector to a power cut, though every check of theirs passes."""

from __future__ import annotations

import numpy as np
import pytest
from support.stores import StoreHome

from penstock.format import kernels
from penstock.format.constants import SECTOR_SIZE as SECTOR
from penstock.format.record import Record, encode_record
from penstock.format.scan_rows import Reason
from penstock.store import Message

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
    assert kernels.find_valid_end(data, 0, 0, len(data), True) == ends_at_it


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
