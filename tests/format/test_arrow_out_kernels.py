"""Records to columns: each kernel, on both twins, and that the twins agree, also on garbage."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from format.test_twins import assert_equal_results, longs, properties, records
from hypothesis import given
from hypothesis import strategies as st
from support.messages import HOST, make_log, make_record

from penstock.format import kernels
from penstock.format.hosts import decode_host, encode_host
from penstock.format.kernel_row_types import ROW, Reason
from penstock.format.kernels import _compiled, plain
from penstock.format.message_id import encode_message_id
from penstock.format.properties import decode_properties

Places = tuple[np.ndarray, np.ndarray]


def place(*texts: bytes | None) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Data with these texts and other bytes between them, and their positions."""
    data, places, lengths = b"", [], []
    for text in texts:
        data += b"##"
        places.append(len(data))
        lengths.append(-1 if text is None else len(text))
        data += text or b""
    return data, np.array(places, np.int64), np.array(lengths, np.int32)


def taken(data: bytes, places: np.ndarray, lengths: np.ndarray) -> list[bytes | None]:
    pairs = zip(places.tolist(), lengths.tolist(), strict=True)
    return [None if length < 0 else data[at : at + length] for at, length in pairs]


def split(offsets: np.ndarray, values: list) -> list[list]:
    return [values[start:end] for start, end in pairwise(offsets.tolist())]


# -- rows ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernels_name")
class TestUnitRows:
    BASE = 1000

    def read(self, log: bytearray, offsets: list[int], sizes: list[int], numbers: list[int], **changes):
        fields = {"topic": b"T", "queue_id": 0, "check_crc": True} | changes
        out = bytearray(sum(max(size, 0) for size in sizes))
        units = np.array(offsets, np.int64), np.array(sizes, np.int32), np.array(numbers, np.int64)
        rows, reasons = kernels.unit_rows(log, self.BASE, len(log), *units, *fields.values(), out)
        return rows, [Reason(reason) for reason in reasons], out

    def places(self, log: bytearray) -> tuple[list[int], list[int]]:
        rows, _, _ = kernels.walk(log, self.BASE, 0, len(log), True, None, 100)
        return rows["physical_offset"].tolist(), rows["size"].tolist()

    def test_records_are_found_where_units_point_and_copied_one_after_the_other(self) -> None:
        log = make_log([b"a", b"bb", b"ccc"], self.BASE)
        offsets, sizes = self.places(log)
        rows, reasons, out = self.read(log, [offsets[2], offsets[0]], [sizes[2], sizes[0]], [2, 0])
        assert reasons == [Reason.STOP] * 2
        assert rows["queue_offset"].tolist() == [2, 0]
        assert bytes(out) == bytes(log[-sizes[2] :] + log[: sizes[0]])

    def test_what_is_not_the_promised_message_has_no_row(self) -> None:
        log = make_log([b"a", b"b"], self.BASE)
        (first, second), (size, _) = self.places(log)
        for changes in ({"topic": b"U"}, {"topic": b""}, {"queue_id": 1}):
            assert self.read(log, [first], [size], [0], **changes)[1] == [Reason.BAD_POSITION]
        assert self.read(log, [first, second], [size, size], [1, 1])[1] == [Reason.BAD_POSITION, Reason.STOP]

    def test_damage_has_no_row_and_says_why(self) -> None:
        log = make_log([b"aaaa", b"bbbb"], self.BASE)
        (first, second), (size, _) = self.places(log)
        log[88] ^= 1
        assert self.read(log, [first, second], [size, size], [0, 1])[1] == [Reason.BAD_CRC, Reason.STOP]
        assert self.read(log, [first], [size], [0], check_crc=False)[1] == [Reason.STOP]
        assert self.read(log, [second], [size - 1], [1])[1] == [Reason.BEYOND_END]
        assert self.read(log, [first + 1], [size], [0])[1][0] not in (Reason.STOP, Reason.UNWRITTEN)

    @pytest.mark.parametrize(
        ("offset", "size"),
        [(999, 96), (1000, 0), (1000, -1), (1000, 10**6), (5000, 96), (-(2**63), 96), (2**63 - 1, 1)],
    )
    def test_a_unit_that_points_out_of_the_file_has_no_row(self, offset: int, size: int) -> None:
        log = make_log([b"a"], self.BASE)
        assert self.read(log, [offset], [size], [0])[1] == [Reason.UNWRITTEN]

    def test_nothing_behind_the_stop_is_read(self) -> None:
        log = make_log([b"a"], self.BASE)
        units = np.array([1000], np.int64), np.array([len(log)], np.int32), np.array([0], np.int64)
        for stop, reason in ((len(log), Reason.STOP), (len(log) - 1, Reason.UNWRITTEN), (-5, Reason.UNWRITTEN)):
            _, reasons = kernels.unit_rows(log, 1000, stop, *units, b"T", 0, True, bytearray(len(log)))
            assert reasons.tolist() == [reason]

    def test_too_little_room_is_refused(self) -> None:
        log = make_log([b"a"], self.BASE)
        units = np.array([1000], np.int64), np.array([len(log)], np.int32), np.array([0], np.int64)
        with pytest.raises(ValueError):
            kernels.unit_rows(log, 1000, len(log), *units, b"T", 0, True, bytearray(len(log) - 1))


@given(
    st.lists(records, max_size=5),
    st.lists(st.tuples(st.integers(900, 2000) | longs, st.integers(-2, 300), st.integers(0, 3)), max_size=4),
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=3),
)
def test_both_twins_read_units_alike(fields: list[dict], units: list[tuple[int, int, int]], flips) -> None:
    log, good = bytearray(), []
    for number, field in enumerate(fields):
        record = make_record(1000 + len(log), queue_offset=number, **field)
        good.append((1000 + len(log), len(record), number))
        log += record
    for at, value in flips:
        if log:
            log[at % len(log)] = value
    units = good + units
    offsets, sizes, numbers = ([unit[part] for unit in units] for part in range(3))
    columns = np.array(offsets, np.int64), np.array(sizes, np.int32), np.array(numbers, np.int64)
    results = []
    for twin in (_compiled, plain):
        out = bytearray(2000)
        rows, reasons = twin.unit_rows(log, 1000, len(log), *columns, b"T", 0, True, out)
        kept = int(rows["size"].sum())
        results.append((rows.tolist(), reasons.tolist(), bytes(out[:kept])))
    assert results[0] == results[1]


def test_rows_are_filled_in_as_far_as_there_is_room(kernels_name: str) -> None:
    log = make_log([b"a", b"b", b"c"])
    walked, _, _ = kernels.walk(log, 0, 0, len(log), True, None, 10)
    room = np.zeros(2, ROW)
    assert kernels.fill_rows(log, 0, 0, len(log), True, room) == (2, int(walked["physical_offset"][2]), Reason.FULL)
    assert room.tolist() == walked[:2].tolist()
    assert kernels.fill_rows(log, 0, 0, len(log), True, np.zeros(5, ROW)) == (3, len(log), Reason.STOP)


def test_records_taken_out_of_their_log_may_have_lain_anywhere(kernels_name: str) -> None:
    pulled = [make_record(position, body) for position, body in ((9000, b"a"), (70, b"bb"), (2**60, b""))]
    data, room = b"".join(pulled), np.zeros(9, ROW)
    assert kernels.loose_rows(data, 0, True, room) == (3, len(data), Reason.STOP)
    assert room["physical_offset"][:3].tolist() == [9000, 70, 2**60]
    assert room["size"][:3].tolist() == [len(record) for record in pulled]
    assert kernels.loose_rows(data, 0, True, room[:1]) == (1, len(pulled[0]), Reason.FULL)
    assert kernels.loose_rows(data, len(pulled[0]), True, room)[0] == 2
    harmed = data.replace(b"bb", b"bx")
    assert kernels.loose_rows(harmed, 0, True, room) == (1, len(pulled[0]), Reason.BAD_CRC)
    assert kernels.loose_rows(make_record(-1), 0, True, room) == (0, 0, Reason.BAD_POSITION)


@given(
    st.lists(st.tuples(longs, records), max_size=4),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255))),
    st.integers(0, 300),
)
def test_the_twins_agree_on_loose_records(given_: list, harm: list[tuple[int, int]], start: int) -> None:
    data = bytearray(b"".join(make_record(position, **fields) for position, fields in given_))
    for at, value in harm:
        if data:
            data[at % len(data)] = value
    results = []
    for twin in (_compiled, plain):
        room = np.zeros(3, ROW)
        count, *rest = twin.loose_rows(data, start if harm else 0, True, room)
        results.append((count, rest, room[:count].tolist()))
    assert results[0] == results[1]


def test_fields_are_taken_out_of_rows(kernels_name: str) -> None:
    log = make_log([b"a", b"bb"])
    rows, _, _ = kernels.walk(log, 0, 0, len(log), True, None, 10)
    fields = kernels.row_fields(rows, ("size", "physical_offset", "flag"))
    assert [field.tolist() for field in fields] == [rows[n].tolist() for n in ("size", "physical_offset", "flag")]
    assert [field.dtype for field in fields] == [np.int32, np.int64, np.int32]


# -- texts ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernels_name")
class TestTexts:
    def test_texts_are_gathered_one_after_the_other(self) -> None:
        values = [b"a", b"", None, b"x" * 100, b"y" * 31, b"zz"]
        out = bytearray(134)
        kernels.gather(*place(*values), out)
        assert out == b"".join(value or b"" for value in values)

    def test_room_that_does_not_fit_exactly_is_refused(self) -> None:
        for size in (2, 4):
            with pytest.raises(ValueError):
                kernels.gather(*place(b"abc"), bytearray(size))

    @pytest.mark.parametrize(("at", "length"), [(-1, 1), (8, 3), (2**62, 0), (11, 0), (0, 2**31 - 1)])
    def test_a_text_outside_the_data_is_refused(self, at: int, length: int) -> None:
        places = np.array([at], np.int64), np.array([length], np.int32)
        for call in (
            lambda: kernels.gather(bytes(10), *places, bytearray(max(0, min(length, 99)))),
            lambda: kernels.find_values(bytes(10), *places, (b"a",)),
            lambda: kernels.is_one_of(bytes(10), *places, (b"a",)),
            lambda: kernels.are_utf8(bytes(10), *places),
            lambda: kernels.split_keys(bytes(10), *places),
            lambda: kernels.split_properties(bytes(10), *places),
        ):
            with pytest.raises(ValueError):
                call()

    def test_values_are_found_by_name(self) -> None:
        data, *places = place(
            b"TAGS\x01a\x02KEYS\x01k1 k2",
            b"KEYS\x01x\x02KEYS\x01y\x02",
            b"TAGS\x01\x02XKEYS\x01z\x02KEYSX\x01z",
            None,
            b"",
        )
        tags, keys, none = kernels.find_values(data, *places, (b"TAGS", b"KEYS", b""))
        assert taken(data, *tags) == [b"a", None, None, None, None]
        assert taken(data, *keys) == [b"k1 k2", b"y", None, None, None]
        assert taken(data, *none) == [None] * 5

    def test_texts_are_compared_with_several(self) -> None:
        data, *places = place(b"orders", b"order", None, b"", b"Orders", b"b")
        assert kernels.is_one_of(data, *places, (b"orders", b"b")).tolist() == [True, False, False, False, False, True]
        assert kernels.is_one_of(data, *places, (b"",)).tolist() == [False, False, False, True, False, False]
        assert not kernels.is_one_of(data, *places, ()).any()

    def test_texts_are_utf8_or_not(self) -> None:
        texts = [b"", b"plain text of more than eight bytes", "müßig 水 🜁".encode(), b"12345678\xff", b"\xc0\x80"]
        data, *places = place(*texts, b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe6\xb0", None)
        assert kernels.are_utf8(data, *places).tolist() == [True, True, True, *[False] * 6]

    def test_keys_are_split_at_spaces(self) -> None:
        data, *places = place(b"a bb", None, b"  c ", b" ", b"d" * 70)
        offsets, *found = kernels.split_keys(data, *places)
        assert split(offsets, taken(data, *found)) == [[b"a", b"bb"], [], [b"c"], [], [b"d" * 70]]

    @pytest.mark.parametrize("count", [0, 5, 40, 3000])
    def test_properties_are_split_each_name_once(self, count: int) -> None:
        pairs = [b"n%d\x01v%d" % (number % max(1, count // 2), number) for number in range(count)]
        text = b"\x02".join([b"a\x011", *pairs, b"a\x012", b"\x01x", b"no", b"e\x01"])
        data, *places = place(text, None, b"b\x01\x013")
        offsets, names, name_lengths, *values = kernels.split_properties(data, *places)
        found = list(zip(taken(data, names, name_lengths), taken(data, *values), strict=True))
        expected = decode_properties(text)
        first, none, last = split(offsets, found)
        assert [(name.decode(), value.decode()) for name, value in first] == list(expected.items())
        assert (none, last) == ([], [(b"b", b"\x013")])

    def test_ids_and_hosts_are_those_of_single_records(self) -> None:
        hosts = [
            HOST,
            HOST,
            "[1050::5:600:300c:326b]:10911",
            "[1050::5:600:300c:326b]:10911",
            "[::ffff:1.2.3.4]:65535",
            "0.0.0.0:0",
        ]
        data, *places = place(*(encode_host(host) for host in hosts))
        numbers = np.array([0, 2**63 - 1, -1, 255, 7, 1], np.int64)
        ids = [encode_message_id(host, number) for host, number in zip(hosts, numbers.tolist(), strict=True)]
        out = bytearray(sum(map(len, ids)))
        kernels.message_ids(data, *places, numbers, out)
        assert out.decode() == "".join(ids)
        room = bytearray(26 * 3 + 58 * 3)
        offsets = kernels.host_texts(data, *places, room)
        assert [bytes(room[a:b]).decode() for a, b in pairwise(offsets.tolist())] == hosts

    def test_a_port_that_no_socket_has_is_shown_as_stored(self) -> None:
        host = b"\xff" * 8
        data, *places = place(host)
        room = bytearray(26)
        end = kernels.host_texts(data, *places, room)[1]
        assert room[:end].decode() == decode_host(host) == "255.255.255.255:4294967295"

    def test_hosts_of_other_lengths_and_too_little_room_are_refused(self) -> None:
        data, *places = place(bytes(9))
        with pytest.raises(ValueError):
            kernels.host_texts(data, *places, bytearray(100))
        data, *places = place(bytes(8))
        with pytest.raises(ValueError):
            kernels.host_texts(data, *places, bytearray(25))
        with pytest.raises(ValueError):
            kernels.message_ids(data, *places, np.zeros(1, np.int64), bytearray(31))


@given(st.lists(properties | st.none(), max_size=6))
def test_both_twins_take_properties_apart_alike(values: list[bytes | None]) -> None:
    data, *places = place(*values)
    for padded in (data, data + bytes(64)):
        assert_equal_results("find_values", padded, *places, (b"KEYS", b"TAGS", b"a", b"", b"\x01"))
        assert_equal_results("is_one_of", padded, *places, (b"", b"a", b"KEYS\x01a"))
        assert_equal_results("split_keys", padded, *places)
        assert_equal_results("split_properties", padded, *places)
    for value, pairs in zip(values, split_pairs(data, *places), strict=True):
        assert pairs == list(decode_properties(value or b"").items())


def split_pairs(data: bytes, *places: np.ndarray) -> list[list[tuple[str, str]]]:
    offsets, names, name_lengths, *values = kernels.split_properties(data, *places)
    pairs = zip(taken(data, names, name_lengths), taken(data, *values), strict=True)
    decoded = [tuple(text.decode("utf-8", "surrogateescape") for text in pair) for pair in pairs]
    return split(offsets, decoded)


@given(st.lists(st.binary(max_size=12) | st.text(max_size=6).map(str.encode) | st.none(), max_size=6))
def test_both_twins_know_utf8(values: list[bytes | None]) -> None:
    data, *places = place(*values)
    assert_equal_results("are_utf8", data, *places)


@given(st.binary(max_size=60), st.lists(st.tuples(longs | st.integers(0, 60), st.integers(-2, 60)), max_size=4))
def test_both_twins_treat_any_places_alike(data: bytes, pairs: list[tuple[int, int]]) -> None:
    places = np.array([at for at, _ in pairs], np.int64), np.array([length for _, length in pairs], np.int32)
    assert_equal_results("find_values", data, *places, (b"a",))
    assert_equal_results("split_keys", data, *places)
    assert_equal_results("split_properties", data, *places)
    assert_equal_results("host_texts", data, *places, bytearray(300))
    assert_equal_results("gather", data, *places, bytearray(sum(max(length, 0) for _, length in pairs)))
