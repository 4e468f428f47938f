"""Records that end with their own CRC (enabledAppendPropCRC): written on every way in, checked wherever one is read."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from support.stores import StoreHome

from penstock.format.constants import CRC32
from penstock.store import GetStatus, Message, MessageStore, PutResult, Settings
from penstock.store.audit import audit
from penstock.store.replication.replica_log import DamagedOnTheWay

pytestmark = pytest.mark.usefixtures("kernels_name")


@pytest.fixture
def store(home: StoreHome) -> MessageStore:
    return home.open(enabled_append_prop_crc=True)


def put_every_kind(store: MessageStore) -> int:
    """Stores messages on every way into the log; returns how many."""
    store.put(Message("T", b"first of its topic"))
    store.put(Message("T", b"ordinary", keys=["a", "b"], tags="x", properties={"p": "v"}))
    store.put(Message("T", b"as text", property_text="p\x01v\x02q\x01w"))
    store.put(Message("T", b"as text that ends with a separator", property_text="p\x01v\x02"))
    store.put(Message("T", b"", properties={}))
    store.put(Message("T", b"delayed", delay_level=1))
    store.put_many([Message("T", b"one of two"), Message("T", b"two of two", tags="x")])
    store.put_arrow(pa.RecordBatch.from_pydict({"topic": ["T", "T"], "body": [b"row 1", b"row 2"]}))
    rows = {"topic": ["T"], "body": [b"row"], "tags": ["x"], "properties": [[("p", "v"), (CRC32, "7")]]}
    schema = {"properties": pa.map_(pa.string(), pa.string())}
    arrays = [pa.array(values, schema.get(name)) for name, values in rows.items()]
    store.put_arrow(pa.RecordBatch.from_arrays(arrays, list(rows)))
    return 11


def check_by_hand(record: bytes) -> bool:
    """Whether the last 20 bytes of a record are a property with the CRC of all bytes before it."""
    before, last = record[:-20], record[-20:]
    digits = f"{zlib.crc32(before) & 0x7FFFFFFF:010}"[::-1].encode()
    return last == b"__CRC32#\x01" + digits + b"\x02"


def every_record(store: MessageStore) -> list[bytes]:
    return [bytes(record) for topic in ("T", "SCHEDULE_TOPIC_XXXX") for record in store.get(topic, 0, 0, 32).records]


def test_every_way_in_writes_the_crc(store: MessageStore) -> None:
    count = put_every_kind(store)
    records = every_record(store)
    assert len(records) == count
    assert all(check_by_hand(record) for record in records)


def test_without_the_setting_there_is_none(home: StoreHome) -> None:
    store = home.open()
    put_every_kind(store)
    assert not any(CRC32.encode() in record for record in every_record(store))


def test_it_is_the_last_property_and_nobody_sees_it(store: MessageStore) -> None:
    put_every_kind(store)
    messages = store.get("T", 0, 0, 32).messages
    assert messages[1].properties == {"p": "v", "KEYS": "a b", "TAGS": "x"}
    assert not any(CRC32 in message.properties for message in messages)
    batch = store.get_arrow("T", 0, 0).batch
    assert not any(CRC32 in dict(properties or []) for properties in batch.column("properties").to_pylist())


@pytest.mark.parametrize("is_on", [False, True])
def test_a_crc_that_a_client_sends_is_dropped(home: StoreHome, is_on: bool) -> None:
    store = home.open(enabled_append_prop_crc=is_on)
    for _ in range(2):  # the second put of a topic takes the fast path
        store.put(Message("T", b"body", properties={"p": "v", CRC32: "0000000000"}))
        store.put(Message("T", b"body", property_text=f"p\x01v\x02{CRC32}\x010000000000\x02"))
    store.close()
    home.mark_crashed()
    messages = home.read_queue(home.open(), "T")
    assert [message.properties for message in messages] == [{"p": "v"}] * 4


def test_the_next_start_accepts_every_record(home: StoreHome, store: MessageStore) -> None:
    count = put_every_kind(store)
    before = every_record(store)
    store.close()
    home.mark_crashed()
    again = home.open()
    assert every_record(again) == before
    assert len(before) == count
    again.close()
    assert not [finding for finding in audit(home.path, Settings.dev()).findings if finding.severity != "note"]


def test_one_flipped_bit_anywhere_is_noticed(home: StoreHome, store: MessageStore) -> None:
    """Of the header, topic and properties as well: without the CRC of the record nothing covers them."""
    result = store.put(Message("Topic", b"the body", keys="key", properties={"name": "value"}))
    store.put(Message("Topic", b"the next one"))
    assert len(store.get("Topic", 0, 0, 32).messages) == 2
    (log,) = home.log_files()
    store.flush()
    noticed = []
    name = range(result.size - 20, result.size - 11)
    for position in (at for at in range(8, result.size - 1) if at not in name):  # with its name lost there is no CRC
        home.flip(log, position)
        page = store.get("Topic", 0, 0, 32)
        noticed.append(page.status is GetStatus.FOUND and [m.body for m in page.messages] == [b"the next one"])
        home.flip(log, position)
    assert all(noticed)
    assert len(store.get("Topic", 0, 0, 32).messages) == 2


READERS: dict[str, Callable[[MessageStore, PutResult], object]] = {
    "get": lambda store, rotten: [message.body for message in store.get("T", 0, 0, 32).messages],
    "get by tag": lambda store, rotten: [message.body for message in store.get("T", 0, 0, 32, "tag").messages],
    "look up": lambda store, rotten: [b"fine"] if store.look_up(rotten.physical_offset) is None else [],
    "look up by id": lambda store, rotten: [b"fine"] if store.look_up_id(rotten.msg_id) is None else [],
    "query": lambda store, rotten: [message.body for message in store.query("T", "key")],
    "Arrow rows of a queue": lambda store, rotten: store.get_arrow("T", 0, 0).batch.column("body").to_pylist(),
    "Arrow rows of the log": lambda store, rotten: store.log_arrow(0).batch.column("body").to_pylist(),
}
"""Each returns the body of the message behind the rotten one, or if it reads one record, that if it finds none."""


@pytest.mark.parametrize("part", ["topic", "properties"])
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_serves_a_record_that_rotted(home: StoreHome, store: MessageStore, reader: str, part: str) -> None:
    rotten = put_two(store)
    rot(home, rotten, part)
    assert READERS[reader](store, rotten) == [b"fine"]


def put_two(store: MessageStore) -> PutResult:
    """Stores two messages; returns the place of the first."""
    first = store.put(Message("T", b"rotten", keys="key", tags="tag", properties={"name": "value"}))
    assert store.put(Message("T", b"fine", keys="key", tags="tag")).ok
    store.catch_up()
    store.flush()
    return first


def rot(home: StoreHome, record: PutResult, part: str) -> None:
    """Changes one bit of a record's topic or properties, which the CRC of the body does not cover."""
    data = home.log_files()[0].read_bytes()[: record.end_offset]
    home.flip(home.log_files()[0], data.rindex(b"value") if part == "properties" else data.index(b"rotten") + 7)


@pytest.mark.parametrize("part", ["topic", "properties"])
def test_start_verify_and_slave_refuse_a_record_that_rotted(
    home: StoreHome, store: MessageStore, part: str, tmp_path: Path
) -> None:
    rotten = put_two(store)
    end = store.log.queue.wrote_offset
    store.close()
    rot(home, rotten, part)
    copy = home.copy_to(tmp_path / "copy")
    data = home.log_files()[0].read_bytes()[:end]
    (error,) = audit(home.path, Settings.dev()).errors
    assert (error.kind, error.what[:37]) == ("record-crc", "the record does not match its own CRC")
    slave = StoreHome(tmp_path / "slave").open(broker_role="SLAVE")
    assert slave.replica_log is not None
    with pytest.raises(DamagedOnTheWay):
        slave.replica_log.append(0, data)
    slave.close()
    copy.mark_crashed()
    (copy.path / "checkpoint").unlink()
    recovered = copy.open()
    assert [(each.physical_offset, each.size) for each in recovered.report.damage] == [(0, rotten.size)]
    copy.close_all()


@pytest.mark.parametrize("is_on", [False, True])
def test_verify_counts_the_records_that_have_one(home: StoreHome, is_on: bool) -> None:
    with home.open(enabled_append_prop_crc=is_on) as store:
        count = put_every_kind(store)
    with home.open(enabled_append_prop_crc=not is_on) as store:
        for text in ("", "a\x01b", f"a\x01{'_' * 20}\x02", f"a\x01{CRC32}\x01000000000"):
            assert store.put(Message("T", b"other", property_text=text)).ok
    figures = audit(home.path, Settings.dev()).figures
    assert (figures.records, figures.record_crcs) == (count + 4, count if is_on else 4)
