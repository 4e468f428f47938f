"""Units and keys from a walk over a range of the log: on both twins, and equal to those of the single records."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import TWINS, running_on
from support.messages import G1, make_record

from penstock.format import kernels
from penstock.format.index_layout import key_hash
from penstock.format.kernel_row_types import Reason
from penstock.format.properties import encode_properties
from penstock.format.queue_unit import pack_unit
from penstock.format.record import decode_record
from penstock.format.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK

DELAYS = (1000, 5000)
SLACK = 1 << 20


def everything(topic: str, queue_id: int) -> int:
    return 0


def builder(
    since: Callable[[str, int], int] | None = everything, *, with_keys: bool = True, max_runs: int = 64
) -> kernels.RangeBuilder:
    return kernels.RangeBuilder(kernels.TopicTable(), DELAYS, with_keys, since, SLACK, max_runs)


def a_log(*records: dict) -> bytearray:
    log = bytearray()
    for fields in records:
        log += make_record(len(log), **fields)
    return log


def by_rows(log: bytearray) -> tuple[dict[tuple[str, int], bytes], list[tuple[int, int, int]]]:
    """Units of a valid log by the row kernels, and keys by the properties of each record."""
    topics = kernels.TopicTable()
    rows, reached, _ = kernels.walk(log, 0, 0, len(log), True, topics, len(log))
    assert reached == len(log)
    kernels.tag_codes(log, 0, rows, DELAYS)
    units = {}
    for topic_id, queue_id, picks in kernels.group_rows(rows):
        columns = (rows[name][picks].tolist() for name in ("physical_offset", "size", "tags_code"))
        made = b"".join(pack_unit(*unit) for unit in zip(*columns, strict=True))
        units[topics.name(topic_id), queue_id] = made
    return units, [key for offset in rows["physical_offset"].tolist() for key in keys_of_record(log, offset)]


def keys_of_record(log: bytearray, offset: int) -> list[tuple[int, int, int]]:
    record = decode_record(log, offset)
    if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return []
    words = [record.properties.get("UNIQ_KEY", ""), *record.properties.get("KEYS", "").split(" ")]
    return [(key_hash(record.topic, word), offset, record.store_timestamp) for word in words if word]


def keys_in(table: memoryview) -> list[tuple[int, int, int]]:
    return np.frombuffer(table, [("hash", "<i4"), ("offset", "<i8"), ("time", "<i8")]).tolist()


words = st.text(max_size=20) | st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "a b  c", "1", "2", "Aa", "BB"])
properties = (
    st.dictionaries(words, words, max_size=6).map(
        lambda pairs: encode_properties({n.replace("\x02", ""): v for n, v in pairs.items()})
    )
    | st.binary(max_size=90)
    | st.lists(st.sampled_from([b"TAGS", b"KEYS", b"DELAY", b"\x01", b"\x02", b" ", b"2", b"\xff", b"k" * 17])).map(
        b"".join
    )
)
logs = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=90),
            "topic": st.sampled_from(["T", "U", "SCHEDULE_TOPIC_XXXX", "中文", "%RETRY%a-longer-name"]),
            "queue_id": st.integers(-1, 2),
            "queue_offset": st.integers(0, 6),
            "sys_flag": st.sampled_from([0, 4, 8, 12, 2]),
            "store_timestamp": st.integers(-(2**63), 2**63 - 1),
            "properties": properties,
        }
    ),
    max_size=12,
).map(lambda records: a_log(*records))


@pytest.mark.usefixtures("kernels_name")
@settings(max_examples=30)
@given(logs)
def test_units_and_keys_are_those_that_the_rows_give(log: bytearray) -> None:
    made = builder()
    reached, reason, count = made.take(log, 0, 0, len(log))
    assert (reached, reason) == (len(log), Reason.STOP)
    assert made.records == count
    units, keys = by_rows(log)
    assert {(topic, queue_id): bytes(data) for topic, queue_id, _, data in made.queues()} == units
    assert keys_in(made.key_table()) == keys


def said(made: kernels.RangeBuilder, answers: list[tuple[int, int, int, int]]) -> list[object]:
    queues = [(*part[:3], bytes(part[3])) for part in made.queues()]
    return [answers, queues, bytes(made.key_table()), made.rolled_back, made.records, made.newest]


@settings(max_examples=30)
@given(logs, st.data())
def test_both_twins_say_the_same_of_a_harmed_log(log: bytearray, data: st.DataObject) -> None:
    if log:
        for at in data.draw(st.lists(st.integers(0, len(log) - 1), max_size=3)):
            log[at] ^= data.draw(st.integers(1, 255))
    log += data.draw(st.binary(max_size=20))
    base, max_runs = data.draw(st.sampled_from([0, 0, 0, 8])), data.draw(st.integers(1, 3))
    checked, most = data.draw(st.booleans()), data.draw(st.sampled_from([1, 2, 100]))
    starts = sorted([*data.draw(st.lists(st.integers(0, len(log)), max_size=3)), 0])
    found = []
    for twin in TWINS:
        with running_on(twin):
            made = builder(lambda topic, queue_id: 200 if topic == "U" else 0, max_runs=max_runs)
            answers = [made.take(log, base, start, len(log), checked, most) for start in starts]
            found.append(said(made, answers))
    assert found[0] == found[-1]


@pytest.mark.usefixtures("kernels_name")
def test_a_run_goes_on_from_call_to_call_and_a_gap_begins_a_new_one() -> None:
    records = [{"queue_offset": offset, "properties": {"KEYS": f"k{offset}"}} for offset in (4, 5, 6, 9, 10)]
    log = a_log(*records)
    made = builder()
    reached, *_ = made.take(log, 0, 0, 1)
    made.take(log, 0, reached, len(log))
    ((topic, queue_id, runs, units),) = made.queues()
    assert (topic, queue_id, len(units)) == ("T", 0, 100)
    last = len(log) - len(make_record(0, **records[-1]))
    fourth = last - len(make_record(0, **records[-2]))
    assert runs == [(4, 7, 0, fourth), (9, 11, fourth, len(log))]
    assert len(keys_in(made.key_table())) == 5


@pytest.mark.usefixtures("kernels_name")
def test_a_queue_with_too_many_runs_has_none_and_the_others_have_theirs() -> None:
    log = a_log(*({"queue_offset": offset, "queue_id": offset % 2} for offset in range(8)), {"queue_offset": 1})
    made = builder(lambda topic, queue_id: 0 if queue_id == 0 else 400, max_runs=3)
    made.take(log, 0, 0, len(log))
    (spoilt, other) = made.queues()
    assert (spoilt[:3], bytes(spoilt[3])) == (("T", 0, []), b"")
    assert [run[:2] for run in other[2]] == [(5, 6), (7, 8)]


@pytest.mark.usefixtures("kernels_name")
def test_a_record_gets_no_unit_before_its_queue_begins_or_where_its_place_cannot_be() -> None:
    asked = []

    def since(topic: str, queue_id: int) -> int:
        asked.append((topic, queue_id))
        return 150 if topic == "U" else 2**63 - 1 if topic == "no" else 0

    log = a_log(
        {"topic": "U"},
        {"topic": "no"},
        {"topic": "U", "queue_offset": 1},
        {"topic": "T", "queue_offset": -1},
        {"topic": "T", "queue_offset": SLACK + 100},
        {"topic": "T", "queue_offset": SLACK},
        {"topic": "U", "queue_offset": 2},
    )
    made = builder(since, with_keys=False)
    assert made.take(log, 0, 0, len(log))[2] == 7
    assert [(topic, [run[:2] for run in runs]) for topic, _, runs, _ in made.queues()] == [
        ("U", [(1, 3)]),
        ("T", [(SLACK, SLACK + 1)]),
    ]
    assert asked == [("U", 0), ("no", 0), ("T", 0)]
    assert bytes(made.key_table()) == b""


@pytest.mark.usefixtures("kernels_name")
def test_what_was_rolled_back_is_told_and_gets_neither_unit_nor_key() -> None:
    fields = {"properties": {"KEYS": "k", "UNIQ_KEY": "u"}}
    log = a_log({"sys_flag": 12, "topic": "gone", **fields}, {"sys_flag": 4, **fields})
    made = builder()
    made.take(log, 0, 0, len(log))
    size = len(make_record(0, topic="gone", **fields))
    assert made.rolled_back == [(0, size, "gone")]
    assert made.queues() == []
    assert [offset for _, offset, _ in keys_in(made.key_table())] == [size, size]


@pytest.mark.usefixtures("kernels_name")
def test_bodies_are_checked() -> None:
    log = a_log({"body": b"good"}, {"body": b"bad"})
    log[log.index(b"bad")] ^= 1
    assert builder().take(log, 0, 0, len(log))[1:3] == (Reason.BAD_CRC, 1)


@pytest.mark.usefixtures("kernels_name")
def test_unchecked_a_body_may_be_anything() -> None:
    log = a_log({"body": b"good"}, {"body": b"bad"})
    log[log.index(b"bad")] ^= 1
    assert builder().take(log, 0, 0, len(log), False) == (len(log), Reason.STOP, 2)


@pytest.mark.usefixtures("kernels_name")
def test_a_limit_of_records_leaves_the_rest_to_the_next_call() -> None:
    records = [{"queue_offset": offset, "store_timestamp": 100 + offset} for offset in range(5)]
    log, made = a_log(*records), builder()
    reached, reason, count = made.take(log, 0, 0, len(log), False, 3)
    assert (reason, count, made.newest) == (Reason.FULL, 3, 102)
    assert made.take(log, 0, reached, len(log), False, 2)[1:3] == (Reason.STOP, 2)
    assert [runs[0][:2] for _, _, runs, _ in made.queues()] == [(0, 5)]


@pytest.mark.usefixtures("kernels_name")
def test_the_golden_record_has_javas_unit() -> None:
    made = builder(None)
    made.take(G1, 0, 0, 180)
    ((_, _, _, units),) = made.queues()
    assert bytes(units) == bytes.fromhex("0000000000000000 000000b4 000000000027a807")


@pytest.mark.usefixtures("kernels_name")
def test_a_failing_question_is_the_callers_to_see() -> None:
    def since(topic: str, queue_id: int) -> int:
        raise LookupError(topic)

    with pytest.raises(LookupError, match="T"):
        builder(since).take(a_log({}), 0, 0, 1000)
    with pytest.raises(ValueError, match="not a position"):
        builder().take(b"", 0, -1, 0)


@pytest.mark.usefixtures("kernels_name")
def test_many_queues_and_many_units_keep_their_places() -> None:
    chance = random.Random(11)
    print("seed 11")
    next_offsets: dict[int, int] = {}
    records = []
    for _ in range(3000):
        queue_id = chance.randrange(200)
        next_offsets[queue_id] = next_offsets.get(queue_id, -1) + 1
        records.append({"queue_id": queue_id, "queue_offset": next_offsets[queue_id], "body": b""})
    log = a_log(*records)
    made = builder()
    made.take(log, 0, 0, len(log))
    queues = made.queues()
    assert {queue_id: runs[0][:2] for _, queue_id, runs, _ in queues} == {
        queue_id: (0, last + 1) for queue_id, last in next_offsets.items()
    }
    assert {(topic, queue_id): bytes(units) for topic, queue_id, _, units in queues} == by_rows(log)[0]
