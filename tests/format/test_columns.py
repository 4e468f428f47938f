"""Work on rows: properties, tag codes, keys, queues, units."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.messages import G1, STORED, as_v2, make_record

from penstock.format import kernels
from penstock.format.delay import DEFAULT_DELAY_LEVELS
from penstock.format.index_layout import key_hash
from penstock.format.kernel_row_types import ROW, Reason

pytestmark = pytest.mark.usefixtures("kernels_name")

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
BASE = 8192


def log_of(*records: dict[str, object]) -> tuple[bytearray, np.ndarray, kernels.Topics]:
    log = bytearray()
    for fields in records:
        log += make_record(BASE + len(log), **fields)
    topics = kernels.TopicTable()
    rows, _, reason = kernels.walk(log, BASE, 0, len(log), True, topics, 2**40)
    assert (reason, len(rows)) == (Reason.STOP, len(records))
    return log, rows, topics


def keys_of(log: bytearray) -> tuple[list[int], list[int]]:
    """The hashes of all keys in a log, and the physical offsets of their records."""
    builder = kernels.RangeBuilder(kernels.TopicTable(), (), True, None, 2**40, 2**40)
    builder.take(log, BASE, 0, len(log))
    keys = np.frombuffer(builder.key_table(), [("hash", "<i4"), ("offset", "<i8"), ("time", "<i8")])
    return keys["hash"].tolist(), keys["offset"].tolist()


def tag_code_of(levels: tuple[int, ...] = DEFAULT_DELAY_LEVELS, **fields: object) -> int:
    log, rows, _ = log_of(fields)
    kernels.tag_codes(log, BASE, rows, levels)
    return int(rows["tags_code"][0])


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (b"", 0),
        (b"TAGS\x01TagA", 2_598_919),
        (b"TAGS\x01TagA\x02", 2_598_919),
        (b"a\x01b\x02TAGS\x01TagA\x02TAGS\x01TagB", 2_598_920),
        (b"TAGS\x01polygenelubricants", -2_147_483_648),
        ("TAGS\x01中文".encode(), 646_394),
        ("TAGS\x01\U0001f600".encode(), 1_772_899),
        (b"TAGS\x01", 0),
        (b"TAGS", 0),
        (b"XTAGS\x01TagA", 0),
        (b"TAGSX\x01TagA", 0),
        (b"a\x01TAGS\x01TagA", 0),
        (b"DELAY\x013\x02TAGS\x01TagA", 2_598_919),  # a delay means something in the schedule topic only
    ],
)
def test_the_tags_code_is_the_tags_hash(properties: bytes, code: int) -> None:
    assert tag_code_of(properties=properties) == code


@pytest.mark.parametrize(
    ("delay", "due"),
    [
        ("1", STORED + 1_000),
        ("3", 1_600_000_011_234),
        ("18", STORED + 7_200_000),
        ("19", STORED + 7_200_000),
        ("+3", STORED + 10_000),
        ("0" * 5000 + "3", STORED + 10_000),
        ("2147483647", STORED + 7_200_000),
    ],
)
def test_in_the_schedule_topic_it_is_the_time_the_message_is_due(delay: str, due: int) -> None:
    assert tag_code_of(topic=SCHEDULE, properties={"DELAY": delay, "TAGS": "TagA"}) == due


@pytest.mark.parametrize("delay", ["0", "-3", "x", "3x", "+", "-", "2147483648", "9" * 5000, "٣", "1 "])
def test_a_delay_that_java_cannot_read_leaves_the_hash(delay: str) -> None:
    assert tag_code_of(topic=SCHEDULE, properties={"DELAY": delay, "TAGS": "TagA"}) == 2_598_919


def test_without_levels_there_is_no_delay() -> None:
    assert tag_code_of((), topic=SCHEDULE, properties={"DELAY": "1", "TAGS": "TagA"}) == 2_598_919


def test_a_deliver_time_beyond_every_clock_wraps_as_in_java() -> None:
    latest = 2**63 - 1
    assert tag_code_of((1,), topic=SCHEDULE, store_timestamp=latest, properties={"DELAY": "1"}) == -(2**63)


@pytest.mark.parametrize("data", [G1, as_v2(G1, b"TopicTest")])
def test_a_property_is_found_in_a_record(data: bytes) -> None:
    buffer = b"before" + data
    assert kernels.find_property(buffer, 6, b"KEYS") == b"order_123"
    assert kernels.find_property(buffer, 6, b"TAGS") == b"TagA"
    assert kernels.find_property(buffer, 6, b"DELAY") is None
    assert kernels.find_property(buffer, 6, b"") is None
    assert kernels.find_property(buffer, 6, b"KEYS\x01order_123\x02TAGS") is None


def test_later_duplicates_of_a_property_win_and_a_value_may_hold_0x01() -> None:
    record = make_record(0, properties=b"a\x01b\x02a\x01c\x01d\x02a\x01\x02")
    assert kernels.find_property(record, 0, b"a") == b"c\x01d"


@pytest.mark.parametrize(("data", "at"), [(G1, -1), (G1, 1), (G1, 180), (G1[:-1], 0), (b"", 0), (bytes(500), 3)])
def test_a_property_is_not_sought_where_there_is_no_record(data: bytes, at: int) -> None:
    with pytest.raises(ValueError, match="no record starts at"):
        kernels.find_property(data, at, b"KEYS")


def test_a_record_is_indexed_under_its_unique_key_first_then_under_each_key() -> None:
    log, rows, _ = log_of(
        {"properties": {"KEYS": "a  b c ", "UNIQ_KEY": "u"}, "topic": "T1"},
        {"properties": {"TAGS": "x"}},
        {"properties": {"KEYS": "中 \U0001f600"}, "topic": "T2"},
    )
    hashes, offsets = keys_of(log)
    expected = [key_hash("T1", key) for key in "uabc"] + [key_hash("T2", key) for key in "中\U0001f600"]
    assert hashes == expected
    assert offsets == rows["physical_offset"][[0, 0, 0, 0, 2, 2]].tolist()


def test_a_key_that_a_record_names_twice_is_put_twice_as_java_does() -> None:
    log, rows, _ = log_of({"properties": {"KEYS": "k u k j", "UNIQ_KEY": "u"}}, {"properties": {"KEYS": "k Aa BB Aa"}})
    hashes, offsets = keys_of(log)
    assert hashes == [key_hash("T", key) for key in ("u", "k", "u", "k", "j", "k", "Aa", "BB", "Aa")]
    assert offsets == rows["physical_offset"][[0] * 5 + [1] * 4].tolist()


def test_the_hash_without_absolute_value_becomes_zero() -> None:
    log, _, _ = log_of({"topic": "TopicTest", "properties": {"KEYS": "aentnpwi"}})
    assert keys_of(log)[0] == [0]


def test_a_record_can_have_thousands_of_keys() -> None:
    keys = [f"{number:x}" for number in range(6_000)]
    log, _, _ = log_of({"properties": {"KEYS": " ".join(keys)}})
    assert keys_of(log)[0] == [key_hash("T", key) for key in keys]


def test_prepared_records_are_indexed_and_rolled_back_ones_are_not() -> None:
    log, rows, _ = log_of(*({"sys_flag": flag, "properties": {"KEYS": "k"}} for flag in (0x0, 0x4, 0x8, 0xC)))
    assert keys_of(log)[1] == rows["physical_offset"][:3].tolist()


def test_rows_are_grouped_by_queue_in_the_order_of_appearance() -> None:
    _, rows, topics = log_of(
        {"topic": "b", "queue_id": 1},
        {"topic": "a", "queue_id": 0},
        {"topic": "b", "queue_id": 0, "sys_flag": 0x4},
        {"topic": "b", "queue_id": 1, "sys_flag": 0x8},
        {"topic": "a", "queue_id": 0, "sys_flag": 0xC},
        {"topic": "b", "queue_id": 0},
        {"topic": "a", "queue_id": 0},
    )
    groups = [(topics.name(topic), queue, picks.tolist()) for topic, queue, picks in kernels.group_rows(rows)]
    assert groups == [("b", 1, [0, 3]), ("a", 0, [1, 6]), ("b", 0, [5])]


def test_no_rows_make_no_groups() -> None:
    rows = np.empty(0, dtype=ROW)
    kernels.tag_codes(b"", 0, rows, ())
    assert kernels.group_rows(rows) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("physical_offset", BASE - 1),
        ("physical_offset", BASE + 1),
        ("physical_offset", -(2**63)),
        ("physical_offset", 2**63 - 1),
        ("size", 2**31 - 1),
        ("size", -1),
        ("topic_at", -1),
        ("topic_length", 2**31 - 1),
        ("properties_at", 2**31 - 1),
        ("properties_at", -(2**31)),
        ("properties_length", 2**31 - 1),
        ("properties_length", -1),
    ],
)
def test_a_row_that_points_outside_the_data_is_refused(field: str, value: int) -> None:
    log, rows, _ = log_of({"properties": {"KEYS": "k"}})
    rows[field] = value
    with pytest.raises(ValueError, match="row 0 is outside the data"):
        kernels.tag_codes(log, BASE, rows, ())


def test_rows_of_another_shape_are_refused() -> None:
    _, rows, _ = log_of({}, {}, {})
    for wrong in (rows[::2], rows["size"], np.zeros(3)):
        with pytest.raises(ValueError, match="contiguous array of ROW"):
            kernels.group_rows(wrong)


class TestTopicTable:
    """Numbers for topics."""

    def test_a_topic_keeps_its_number(self) -> None:
        topics = kernels.TopicTable()
        names = [f"topic_{number}" for number in range(1000)]
        for _ in range(2):
            assert [topics.intern(name.encode()) for name in names] == list(range(1000))
        assert topics.names == names
        assert len(topics) == 1000
        assert topics.name(7) == "topic_7"

    def test_bytes_that_are_not_utf8_have_a_name_that_leads_back_to_them(self) -> None:
        topics = kernels.TopicTable()
        number = topics.intern(b"a\xff")
        assert topics.name(number).encode("utf-8", "surrogateescape") == b"a\xff"
        assert topics.intern(b"") == 1
        assert topics.name(1) == ""

    @pytest.mark.parametrize("number", [-1, 1, 2**40])
    def test_an_unknown_number_has_no_name(self, number: int) -> None:
        topics = kernels.TopicTable()
        topics.intern(b"a")
        with pytest.raises(IndexError):
            topics.name(number)

    def test_threads_that_share_a_table_agree_on_the_numbers(self) -> None:
        log = bytearray()
        for number in range(2_000):
            log += make_record(len(log), b"", topic=f"topic_{number % 300}")
        topics, found = kernels.TopicTable(), []

        def walk() -> None:
            rows, _, _ = kernels.walk(log, 0, 0, len(log), True, topics, 2**40)
            found.append([topics.name(number) for number in rows["topic_id"].tolist()])

        threads = [threading.Thread(target=walk) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[f"topic_{number % 300}" for number in range(2_000)]] * 4
        assert len(topics) == 300
