"""Columns of messages to records: each kernel, on both twins, and that the twins agree."""

from __future__ import annotations

import numpy as np
import pytest
from format.test_twins import assert_equal_results
from hypothesis import given
from hypothesis import strategies as st
from support.messages import HOST

from penstock.format import kernels
from penstock.format.hosts import decode_host, encode_host
from penstock.format.kernel_row_types import PUT_ROW, Reason
from penstock.format.kernels import ListColumn, MapColumn, TextColumn, _compiled, plain
from penstock.format.record import decode_record

V4, V6 = encode_host(HOST), encode_host("[1050::5:600:300c:326b]:10911")


def texts(*values: bytes | None) -> TextColumn:
    """A column of these texts; a null has garbage bytes, as Arrow allows."""
    stored = [b"rubbish" if value is None else value for value in values]
    valid = None if None not in values else np.array([value is not None for value in values], np.bool_)
    return TextColumn(offsets_of([len(text) for text in stored]), b"".join(stored), valid)


def offsets_of(lengths: list[int]) -> np.ndarray:
    return np.array([0, *np.cumsum(lengths)], np.int32)


def lists(*values: list[bytes | None] | None) -> ListColumn:
    items = [item for value in values for item in (value or [])]
    valid = np.array([value is not None for value in values], np.bool_)
    return ListColumn(offsets_of([len(value or []) for value in values]), texts(*items), valid)


def maps(*values: list[tuple[bytes | None, bytes | None]] | None) -> MapColumn:
    pairs = [pair for value in values for pair in (value or [])]
    names, items = [name for name, _ in pairs], [item for _, item in pairs]
    valid = np.array([value is not None for value in values], np.bool_)
    return MapColumn(offsets_of([len(value or []) for value in values]), texts(*names), texts(*items), valid)


def put_rows(count: int, topic: int = 0, queue_id: int = 0) -> np.ndarray:
    rows = np.zeros(count, PUT_ROW)
    rows["topic"], rows["queue_id"] = topic, queue_id
    return rows


TOPICS = texts(b"orders", b"SCHEDULE_TOPIC_XXXX")


def property_strings(rows: np.ndarray, keys=None, tags=None, given=None, delay_levels=None) -> list[bytes]:
    data, _, bad = kernels.property_texts(rows, keys, tags, given, delay_levels, TOPICS, 1, 18, False)
    assert bad == -1
    return [
        bytes(data[at : at + length])
        for at, length in zip(rows["properties_at"].tolist(), rows["properties_length"].tolist(), strict=True)
    ]


# -- property strings ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernels_name")
class TestPropertyTexts:
    def test_keys_and_tags_follow_the_properties(self) -> None:
        strings = property_strings(
            put_rows(3),
            lists([b"k1", b"k2"], None, [b"k3"]),
            texts(b"paid", b"", None),
            maps([(b"a", b"1")], [(b"b", b"2"), (b"c", b"3")], None),
        )
        assert strings == [b"a\x011\x02KEYS\x01k1 k2\x02TAGS\x01paid", b"b\x012\x02c\x013", b"KEYS\x01k3"]

    def test_columns_win_over_properties_of_their_names_and_keep_their_place(self) -> None:
        given = maps([(b"TAGS", b"old"), (b"x", b"1"), (b"KEYS", b"old"), (b"DELAY", b"7")])
        strings = property_strings(put_rows(1), lists([b"k"]), texts(b"new"), given, np.array([-2], np.int64))
        assert strings == [b"TAGS\x01new\x02x\x011\x02KEYS\x01k\x02DELAY\x01-2"]

    @pytest.mark.parametrize("extra", [0, 40])
    def test_of_a_name_given_twice_the_last_value_counts_in_the_first_place(self, extra: int) -> None:
        others = [(b"n%d" % number, b"v") for number in range(extra)]
        strings = property_strings(put_rows(1), given=maps([(b"a", b"1"), *others, (b"b", b"2"), (b"a", b"3")]))
        assert strings[0] == b"\x02".join([b"a\x013", *(b"n%d\x01v" % number for number in range(extra)), b"b\x012"])

    def test_values_that_are_empty_or_null_are_left_out(self) -> None:
        given = maps([(b"a", b""), (b"b", None), (None, None), (b"c", b"1")], [(b"a", b"")], [])
        assert property_strings(put_rows(3), lists([b""], [None], []), given=given) == [b"c\x011", b"", b""]

    def test_an_empty_key_among_others_leaves_its_space(self) -> None:
        assert property_strings(put_rows(1), lists([b"", b"a", None, b""])) == [b"KEYS\x01 a "]

    def test_a_value_may_hold_0x01_and_the_last_of_two_must_be_sound(self) -> None:
        strings = property_strings(put_rows(1), given=maps([(b"a", b"x\x02"), (b"a", b"x\x01y")]))
        assert strings == [b"a\x01x\x01y"]

    @pytest.mark.parametrize(
        "bad",
        [
            {"given": maps([], [(b"", b"v")])},
            {"given": maps([], [(None, b"v")])},
            {"given": maps([], [(b"a\x01", b"v")])},
            {"given": maps([], [(b"a\x02", b"")])},
            {"given": maps([], [(b"a", b"\x02")])},
            {"given": maps([], [(b"DELAY", b"soon")])},
            {"given": maps([], [(b"DELAY", b"")])},
            {"given": maps([], [(b"DELAY", b"12345678901")])},
            {"given": maps([], [(b"a", bytes(32_766))])},
            {"tags": texts(b"", b"a\x02")},
            {"keys": lists([], [b"a", b"\x02"])},
        ],
    )
    def test_the_first_row_that_cannot_be_stored_is_named(self, bad: dict) -> None:
        columns = {"keys": None, "tags": None, "given": None} | bad
        assert kernels.property_texts(put_rows(2), *columns.values(), None, TOPICS, 1, 18, False)[2] == 1

    def test_the_longest_property_string_fits(self) -> None:
        (string,) = property_strings(put_rows(1), given=maps([(b"a", b"x" * 32_765)]))
        assert len(string) == 32_767

    @pytest.mark.parametrize(("level", "stored"), [(1, b"1"), (18, b"18"), (19, b"18"), (2**31, b"18")])
    def test_a_delayed_row_goes_to_its_levels_queue_and_keeps_its_names(self, level: int, stored: bytes) -> None:
        rows = put_rows(1, queue_id=7)
        strings = property_strings(rows, tags=texts(b"t"), delay_levels=np.array([level], np.int64))
        assert strings == [b"TAGS\x01t\x02DELAY\x01" + stored + b"\x02REAL_TOPIC\x01orders\x02REAL_QID\x017"]
        assert (rows["topic"].tolist(), rows["queue_id"].tolist()) == ([1], [int(stored) - 1])

    def test_the_property_delay_delays_too(self) -> None:
        rows = put_rows(1, queue_id=3)
        assert property_strings(rows, given=maps([(b"REAL_QID", b"old"), (b"DELAY", b"02")])) == [
            b"REAL_QID\x013\x02DELAY\x012\x02REAL_TOPIC\x01orders"
        ]
        assert (rows["topic"][0], rows["queue_id"][0]) == (1, 1)

    def test_a_level_of_none_or_below_and_the_schedule_topic_itself_are_left_alone(self) -> None:
        rows = put_rows(3)
        rows["topic"][2] = 1
        levels = np.array([0, -1, 99], np.int64)
        assert property_strings(rows, delay_levels=levels) == [b"", b"DELAY\x01-1", b"DELAY\x0199"]
        assert rows["topic"].tolist() == [0, 0, 1]

    def test_rows_that_want_to_wait_are_counted(self) -> None:
        given = maps([(b"WAIT", b"false")], [(b"WAIT", b"true")], [(b"WAIT", b"")], None)
        assert kernels.property_texts(put_rows(4), None, None, given, None, TOPICS, 1, 18, False)[1] == 3


words = st.sampled_from(
    [b"KEYS", b"TAGS", b"DELAY", b"WAIT", b"REAL_QID", b"a", b"", b"7", b"-1", b"x\x01", b"\x02", b"false"]
)
maybe = st.none() | words
row_values = st.fixed_dictionaries(
    {
        "keys": st.none() | st.lists(maybe, max_size=3),
        "tags": maybe,
        "properties": st.none() | st.lists(st.tuples(maybe, maybe), max_size=20),
        "delay": st.sampled_from([0, 0, 1, 3, 99, -1]),
        "topic": st.integers(0, 1),
        "queue_id": st.integers(0, 2**31 - 1),
    }
)


@given(st.lists(row_values, max_size=5))
def test_both_twins_make_the_same_property_strings(rows: list[dict]) -> None:
    columns = (
        lists(*(row["keys"] for row in rows)),
        texts(*(row["tags"] for row in rows)),
        maps(*(row["properties"] for row in rows)),
        np.array([row["delay"] for row in rows], np.int64),
    )
    results = []
    for twin in (_compiled, plain):
        table = put_rows(len(rows))
        table["topic"], table["queue_id"] = [row["topic"] for row in rows], [row["queue_id"] for row in rows]
        data, waiting, bad = twin.property_texts(table, *columns, TOPICS, 1, 3, False)
        results.append((bytes(data), waiting, bad, table.tolist() if bad < 0 else None))
    assert results[0] == results[1]


# -- numbering -----------------------------------------------------------------------------------------------


def test_texts_are_numbered_by_first_appearance(kernels_name: str) -> None:
    numbers, firsts = kernels.number_texts(texts(b"b", b"", None, b"b", b"a", b"", b"bb"))
    assert (numbers.tolist(), firsts.tolist()) == ([0, 1, -1, 0, 2, 1, 3], [0, 1, 4, 6])


def test_queues_are_numbered_by_first_appearance(kernels_name: str) -> None:
    rows = put_rows(6)
    rows["topic"], rows["queue_id"] = [1, 0, 1, 1, 0, 1], [5, 5, 5, 0, 5, 0]
    assert kernels.number_queues(rows).tolist() == [0, 1, 3]
    assert rows["queue"].tolist() == [0, 1, 0, 2, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=300))
def test_both_twins_number_alike(pairs: list[tuple[int, int]]) -> None:
    tables = [put_rows(len(pairs)), put_rows(len(pairs))]
    for table in tables:
        table["topic"], table["queue_id"] = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert _compiled.number_queues(tables[0]).tolist() == plain.number_queues(tables[1]).tolist()
    assert tables[0].tolist() == tables[1].tolist()
    assert_equal_results("number_texts", texts(*(b"%d" % pair[1] for pair in pairs)))


# -- records -------------------------------------------------------------------------------------------------


def planned(bodies: list[bytes], strings: list[bytes], fixed: int = 91, topic: bytes = b"orders") -> np.ndarray:
    rows = put_rows(len(bodies))
    rows["body_at"], rows["body_length"] = offsets_of([len(body) for body in bodies])[:-1], [len(b) for b in bodies]
    rows["properties_at"] = offsets_of([len(string) for string in strings])[:-1]
    rows["properties_length"] = [len(string) for string in strings]
    rows["size"] = fixed + rows["body_length"] + rows["properties_length"] + len(topic)
    return rows


def encode(
    out: bytearray, at: int, rows: np.ndarray, bodies: bytes, strings: bytes, offsets: np.ndarray, **changes
) -> int:
    hosts = {"sys_flag": 0, "born_host": V4, "store_host": V4} | changes
    return kernels.encode_puts(out, at, 5000, rows, TOPICS, bodies, strings, offsets, 1234, *hosts.values())


def test_rows_become_records_of_which_the_first_is_published_by_the_caller(kernels_name: str) -> None:
    bodies, strings = [b"one", b"", b"three"], [b"a\x01b", b"", b"TAGS\x01t"]
    rows = planned(bodies, strings)
    rows["queue"], rows["queue_id"], rows["flag"] = [1, 0, 1], [9, 8, 9], [0, -1, 2]
    rows["born_timestamp"] = [0, 77, 0]
    offsets, out = np.array([3, 50], np.int64), bytearray(500)
    size = encode(out, 20, rows, b"".join(bodies), b"".join(strings), offsets)
    assert kernels.check_record(out, 20, 4980, True) == Reason.UNWRITTEN
    kernels.publish(out, 20, int(rows["size"][0]))
    found, end, _ = kernels.walk(out, 4980, 20, 20 + size, True, None, 10)
    assert (len(found), end, offsets.tolist()) == (3, 20 + size, [4, 52])
    got = [decode_record(out, at - 4980) for at in rows["physical_offset"].tolist()]
    assert [record.body for record in got] == bodies
    assert [record.queue_offset for record in got] == rows["queue_offset"].tolist() == [50, 3, 51]
    assert [(record.topic, record.queue_id, record.flag) for record in got] == [
        ("orders", 9, 0),
        ("orders", 8, -1),
        ("orders", 9, 2),
    ]
    assert [record.born_timestamp for record in got] == [1234, 77, 1234]
    assert [record.properties for record in got] == [{"a": "b"}, {}, {"TAGS": "t"}]
    assert not any(out[:20])
    assert not any(out[20 + size :])


def test_records_get_the_hosts_they_are_given(kernels_name: str) -> None:
    rows, out = planned([b"x"], [b""], 115), bytearray(122)
    encode(out, 0, rows, b"x", b"", np.zeros(1, np.int64), sys_flag=0x30, born_host=V6, store_host=V6)
    kernels.publish(out, 0, 122)
    assert decode_record(out).store_host == decode_host(V6)


@pytest.mark.parametrize(
    "change",
    [
        {"body_at": 3},
        {"body_at": -1},
        {"body_length": 2**31 - 1},
        {"properties_at": 2**62},
        {"properties_length": -1},
        {"topic": 2},
        {"topic": -1},
        {"queue": 1},
        {"queue": -1},
        {"size": 98},
    ],
)
def test_rows_that_do_not_fit_the_columns_are_refused_before_anything_is_written(
    change: dict, kernels_name: str
) -> None:
    rows, out, offsets = planned([b"ab", b"cd"], [b"", b""]), bytearray(300), np.zeros(1, np.int64)
    for name, value in change.items():
        rows[name][1] = value
    with pytest.raises(ValueError):
        encode(out, 0, rows, b"abcd", b"", offsets)
    assert not any(out)
    assert offsets.tolist() == [0]


@pytest.mark.parametrize(("at", "room"), [(0, 97), (1, 98), (-1, 300)])
def test_records_that_do_not_fit_the_room_are_refused(at: int, room: int, kernels_name: str) -> None:
    out = bytearray(room)
    with pytest.raises(ValueError):
        encode(out, at, planned([b"a"], [b""]), b"a", b"", np.zeros(1, np.int64))
    assert not any(out)


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=20), st.integers(0, 2)), max_size=6))
def test_both_twins_write_the_same_records(items: list[tuple[bytes, bytes, int]]) -> None:
    outs, tables = [], []
    for twin in (_compiled, plain):
        rows = planned([body for body, _, _ in items], [string for _, string, _ in items])
        rows["queue"] = [queue for _, _, queue in items]
        out, offsets = bytearray(1500), np.array([1, 2, 3], np.int64)
        bodies, strings = (b"".join(item[part] for item in items) for part in (0, 1))
        twin.encode_puts(out, 3, 99, rows, TOPICS, bodies, strings, offsets, 5, 0, V4, V4)
        outs.append((out, offsets.tolist()))
        tables.append(rows.tolist())
    assert outs[0] == outs[1]
    assert tables[0] == tables[1]
