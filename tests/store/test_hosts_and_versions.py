"""Hosts of both families, and what other versions of RocketMQ wrote: wide records and extension files."""

from __future__ import annotations

import struct

import pytest
from support.stores import StoreHome

from penstock.format.constants import MESSAGE_MAGIC_V2
from penstock.format.kernels import java_hash
from penstock.format.queue_unit import pack_unit
from penstock.format.record import Record, encode_record
from penstock.store import Message

pytestmark = pytest.mark.usefixtures("kernels_name")


# -- hosts ---------------------------------------------------------------------------------------------------


def test_ipv6_hosts_are_stored_and_shown(home: StoreHome) -> None:
    address = "1050::5:600:300c:326b"
    with home.open(broker_ip1=address) as store:
        both = store.put(Message("T", b"both", born_host=f"[{address}]:54321"))
        one = store.put(Message("T", b"store", born_host="10.0.0.1:1"))
        assert (both.size, one.size) == (91 + 24 + 1 + 4, 91 + 12 + 1 + 5)
    with home.open() as store:
        born = store.put(Message("T", b"born", born_host=f"[{address}]:54321"))
        messages = home.read_queue(store, "T")
        assert [(message.sys_flag, message.born_host, message.store_host) for message in messages] == [
            (0x30, f"[{address}]:54321", f"[{address}]:10911"),
            (0x20, "10.0.0.1:1", f"[{address}]:10911"),
            (0x10, f"[{address}]:54321", "127.0.0.1:10911"),
        ]
        assert len(one.msg_id) == 56
        assert len(born.msg_id) == 32
        assert store.look_up_id(one.msg_id).body == b"store"
        assert store.look_up_id(born.msg_id.lower()).body == b"born"


def test_an_id_of_another_store_finds_nothing(home: StoreHome) -> None:
    store = home.open()
    ack = store.put(Message("T", b"x"))
    elsewhere = store.put(Message("T", b"y", store_host="10.0.0.9:10911"))
    assert store.look_up_id(elsewhere.msg_id).body == b"y"
    assert store.look_up_id("0A000009" + ack.msg_id[8:]) is None


# -- records and files of other versions ---------------------------------------------------------------------


def as_v2(record: bytes, topic: bytes) -> bytes:
    """The record as 5.x writes it for a long topic: another magic, and two bytes for the topic's length."""
    body_end = 88 + struct.unpack_from(">i", record, 84)[0]
    rest = record[body_end + 1 + record[body_end] :]
    wide = record[8:body_end] + struct.pack(">h", len(topic)) + topic + rest
    return struct.pack(">iI", len(wide) + 8, MESSAGE_MAGIC_V2) + wide


@pytest.mark.parametrize("topic", ["T", "%RETRY%" + "g" * 200], ids=["short_topic", "topic_of_207_bytes"])
def test_records_of_rocketmq_5_are_read(home: StoreHome, topic: str) -> None:
    with home.open() as store:
        store.put(Message("T", b"before"))
        end = store.put(Message("T", b"before")).end_offset
    wide = as_v2(
        encode_record(
            Record(
                topic="x",
                queue_offset=2 if topic == "T" else 0,
                physical_offset=end,
                body=b"wide",
                store_timestamp=1_600_000_000_001,
                properties={"KEYS": "k", "TAGS": "paid"},
            )
        ),
        topic.encode(),
    )
    behind = encode_record(
        Record(topic="T", queue_offset=3 if topic == "T" else 2, physical_offset=end + len(wide), body=b"behind")
    )
    home.write(home.log_files()[0], end, wide + behind)
    home.mark_crashed()
    store = home.open()
    assert store.report.torn_bytes == 0
    found = store.look_up(end)
    assert found is not None
    assert (found.topic, found.body) == (topic, b"wide")
    assert [record.body for record in store.query(topic, "k")] == [b"wide"]
    page = store.get(topic, 0, found.queue_offset, tags="paid")
    assert [message.body for message in page.messages] == [b"wide"]
    assert home.bodies(store, "T")[-1] == b"behind"


def ext_unit(tags_code: int, bit_map: bytes) -> bytes:
    return struct.pack(">hqqh", 20 + len(bit_map), tags_code, 1_600_000_000_000, len(bit_map)) + bit_map


def test_tags_codes_in_extension_files_are_found_there(home: StoreHome) -> None:
    """Built by hand, as a RocketMQ with enableConsumeQueueExt leaves them: two files of 100 bytes."""
    with home.open() as store:
        acks = [store.put(Message("T", b"", tags=tags)) for tags in ("paid", "refunded", "paid", "paid")]
        assert len(home.read_queue(store, "T")) == 4
    paid, refunded = java_hash("paid"), java_hash("refunded")
    first = ext_unit(paid, b"\x01" * 14) + ext_unit(refunded, b"\x02" * 14)
    second = ext_unit(paid, b"")
    folder = home.path / "consumequeue_ext" / "T" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes((first + struct.pack(">h", -1)).ljust(100, b"\0"))
    (folder / f"{100:020d}").write_bytes(second.ljust(100, b"\0"))
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    addresses = [0, 34, 100, 180]  # the last leads to bytes that were never written
    for number, (ack, address) in enumerate(zip(acks, addresses, strict=True)):
        unit = pack_unit(ack.physical_offset, ack.size, address - 2**63)
        home.write(home.queue_files("T")[0], number * 20, unit)

    with home.open(mapped_file_size_consume_queue_ext=100) as store:
        found = {
            tags: [message.queue_offset for message in store.get("T", 0, 0, tags=tags).messages]
            for tags in ("paid", "refunded", "other", "*")
        }
        assert found == {"paid": [0, 2, 3], "refunded": [1], "other": [], "*": [0, 1, 2, 3]}
        store.put(Message("T", b"", tags="paid"))
        assert [message.queue_offset for message in store.get("T", 0, 2, tags="paid").messages] == [2, 3, 4]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept, "they are read, never written"


def test_addresses_without_extension_files_leave_the_choice_to_the_text(home: StoreHome) -> None:
    with home.open() as store:
        acks = [store.put(Message("T", b"", tags=tags)) for tags in ("paid", "refunded")]
        store.catch_up()
    for number, ack in enumerate(acks):
        unit = pack_unit(ack.physical_offset, ack.size, number * 34 - 2**63)
        home.write(home.queue_files("T")[0], number * 20, unit)
    store = home.open()
    assert [message.queue_offset for message in store.get("T", 0, 0, tags="refunded").messages] == [1]
