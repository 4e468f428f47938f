"""Which bytes no check covers, found out by flipping each of them; `durability.md` must say the same."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from failure.corruption.damaged_store import SETTINGS, Base
from failure.corruption.test_damage import Bases, open_store
from support import ROOT
from support.messages import place_of

from penstock.format.queue_unit import UNIT_SIZE
from penstock.store import MessageStore, Record

PAGE = ROOT / "docs/explanation/durability.md"
BITS = (0, 3, 7)

Fields = list[tuple[str, int, int]]


def fields_of(record: bytes) -> Fields:
    """(name, begin, end) of every byte of an IPv4 record."""
    sizes = {
        "totalSize": 4, "magicCode": 4, "bodyCRC": 4, "queueId": 4, "flag": 4, "queueOffset": 8, "physicalOffset": 8,
        "sysFlag": 4, "bornTimestamp": 8, "bornHost": 8, "storeTimestamp": 8, "storeHost": 8, "reconsumeTimes": 4,
        "preparedTransactionOffset": 8, "bodyLength": 4,
    }  # fmt: skip
    body = struct.unpack_from(">i", record, 84)[0]
    topic = record[88 + body]
    sizes |= {"body": body, "topicLength": 1, "topic": topic, "propertiesLength": 2}
    sizes["properties"] = len(record) - sum(sizes.values())
    fields, at = [], 0
    for name, size in sizes.items():
        fields.append((name, at, at + size))
        at += size
    assert at == len(record)
    return fields


@pytest.fixture
def store(bases: Bases, tmp_path: Path) -> Iterator[MessageStore]:
    bases[0].write_to(tmp_path / "store")
    with open_store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def record(bases: Bases) -> Record:
    """One that has everything: a body, two keys, a unique key, a tag; not delayed, not the first of its file."""
    return next(
        record
        for record in bases[0].records.values()
        if len(record.keys) == 2 and record.unique_key and record.tags and 60 < len(record.body) < 400
    )


def flipped(view: memoryview, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Turns some bits of each byte over, one at a time, and back again."""
    for position in range(begin, end):
        for bit in BITS:
            view[position] ^= 1 << bit
            yield position, bit
            view[position] ^= 1 << bit


def log_view(store: MessageStore, record: Record) -> tuple[memoryview, int]:
    file = store.log.queue.find(record.physical_offset)
    assert file is not None
    return file.map.view, record.physical_offset - file.from_offset


def rows_under(heading: str) -> set[str]:
    """The names in the first column of the table under a heading of the page."""
    section = PAGE.read_text().split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}


def ways(store: MessageStore, record: Record) -> list[Callable[[], list[Record]]]:
    """Every way to this message."""
    return [
        lambda: [
            found
            for found in store.get(record.topic, record.queue_id, record.queue_offset, 1).messages
            if found.physical_offset == record.physical_offset
        ],
        lambda: [found] if (found := store.look_up(record.physical_offset)) else [],
        lambda: list(store.query(record.topic, record.keys[0])),
    ]


def test_the_page_names_the_bytes_of_a_record_that_no_check_covers(store: MessageStore, record: Record) -> None:
    view, at = log_view(store, record)
    served_altered: set[str] = set()
    refused: set[str] = set()
    for name, begin, end in fields_of(bytes(view[at : at + record.size])):
        for _ in flipped(view, at + begin, at + end):
            answers = [found for way in ways(store, record) for found in way()]
            for found in answers:
                assert (place_of(found), found.body) == (place_of(record), record.body), name
            (served_altered if any(found != record for found in answers) else refused).add(name)
    assert [way() for way in ways(store, record)] == [[record]] * 3, "all bits are back in place"
    assert served_altered == rows_under("Bytes of a record that no check covers")
    assert refused - served_altered == rows_under("Bytes of a record that are checked")


def test_a_flipped_unit_hides_its_message_and_alters_none(store: MessageStore, record: Record, bases: Bases) -> None:
    queue = store.queues.find(record.topic, record.queue_id)
    assert queue is not None
    file = queue.files.find(record.queue_offset * UNIT_SIZE)
    assert file is not None
    at = record.queue_offset * UNIT_SIZE - file.from_offset
    hidden: set[str] = set()
    for name, begin, end in (("offset", 0, 8), ("size", 8, 12), ("tagsCode", 12, 20)):
        for _ in flipped(file.map.view, at + begin, at + end):
            page = store.get(record.topic, record.queue_id, record.queue_offset, 1)
            assert all(bases[0].records[found.physical_offset] == found for found in page.messages)
            hidden |= {name} if record not in page.messages else set()
            assert store.look_up(record.physical_offset) == record, "its record is as it was"
            tagged = store.get(record.topic, record.queue_id, record.queue_offset, 1, record.tags).messages
            assert name == "tagsCode" or record not in tagged
            assert name != "tagsCode" or record not in tagged or tagged == [record]
    assert hidden == {"offset", "size"}


def test_a_flipped_index_file_hides_keys_and_finds_no_wrong_message(store: MessageStore, bases: Bases) -> None:
    records = list(bases[0].records.values())[::10]
    assert store.index is not None
    view = store.index.files[0].map.view
    used = len(bytes(view).rstrip(b"\0"))
    hidden = 0
    for position in range(0, used, 7):
        for _ in flipped(view, position, position + 1):
            for record in records:
                found = list(store.query(record.topic, record.keys[0]))
                assert found in ([record], [])
                hidden += not found
    assert hidden
    assert all(list(store.query(record.topic, record.keys[0])) == [record] for record in records)


def test_a_start_after_a_kill_covers_no_less(bases: Bases, tmp_path: Path, record: Record) -> None:
    """The walk of a start, and dispatch, must not take in what a reader would have refused."""
    killed: Base = bases[1]
    folder = tmp_path / "store"
    number = record.physical_offset // SETTINGS.mapped_file_size_commit_log * SETTINGS.mapped_file_size_commit_log
    name, at = f"commitlog/{number:020d}", record.physical_offset - number
    assert killed.files[name][at : at + 4] == record.size.to_bytes(4, "big")
    checked = rows_under("Bytes of a record that are checked")
    for field, begin, end in fields_of(killed.files[name][at : at + record.size]):
        if field not in checked:
            continue
        for position in {begin, end - 1}:
            killed.write_to(folder)
            content = bytearray(killed.files[name])
            content[at + position] ^= 1
            (folder / name).write_bytes(content)
            with open_store(folder) as store:
                served = [found for way in ways(store, record) for found in way()]
                assert not served, (field, position)
                assert {queue.topic for queue in store.queues} == {each.topic for each in killed.records.values()}
