"""The two twins of the kernels agree to the byte, on valid data and on garbage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.messages import make_file, make_record

from penstock.errors import CorruptData
from penstock.format.index_layout import key_hash
from penstock.format.kernel_row_types import ROW
from penstock.format.kernels import _compiled, plain
from penstock.format.kernels.parameter_types import UnitFile
from penstock.format.properties import encode_properties
from penstock.format.queue_unit import pack_unit
from penstock.format.record import Record, decode_record
from penstock.format.sys_flag import with_hosts

longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
garbage = st.binary(max_size=400)
words = st.text(max_size=8) | st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "a b", "1", "18", "Aa", "BB"])
properties = (
    st.dictionaries(words, words, max_size=5).map(
        lambda pairs: encode_properties({n.replace("\x02", ""): v for n, v in pairs.items()})
    )
    | st.binary(max_size=60)
    | st.lists(st.sampled_from([b"TAGS", b"KEYS", b"DELAY", b"\x01", b"\x02", b" ", b"3", b"\xff"])).map(b"".join)
)
topics = st.sampled_from(["T", "SCHEDULE_TOPIC_XXXX", "中文", "%RETRY%g"])
records = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=50),
        "topic": topics,
        "queue_id": st.integers(0, 2),
        "sys_flag": st.sampled_from([0, 4, 8, 12, 2]),
        "store_timestamp": longs,
        "properties": properties,
    }
)


def result_of(call: Callable[[], object]) -> object:
    """What a call returns, arrays as lists; or the type of the error."""
    try:
        value = call()
    except (ValueError, OverflowError) as error:
        return type(error)
    except CorruptData as error:
        return str(error)
    return plain_value(value)


def plain_value(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    if isinstance(value, tuple | list):
        return [plain_value(part) for part in value]
    return value


def assert_equal_results(kernel: str, *arguments: object) -> None:
    results = [result_of(lambda twin=twin: getattr(twin, kernel)(*arguments)) for twin in (_compiled, plain)]
    assert results[0] == results[1]


def assert_equal_writes(kernel: str, size: int, *arguments: object, before: bytes | None = None) -> None:
    outs = [bytearray(before or bytes(size)) for _ in range(2)]
    results = [
        result_of(lambda twin=twin, out=out: getattr(twin, kernel)(out, *arguments))
        for twin, out in zip((_compiled, plain), outs, strict=True)
    ]
    assert results[0] == results[1]
    assert outs[0] == outs[1]


def log_and_rows(fields: list[dict]) -> tuple[bytearray, np.ndarray]:
    log = bytearray()
    for field in fields:
        log += make_record(len(log), **field)
    rows, _, _ = plain.walk(log, 0, 0, len(log), True, plain.TopicTable(), 1000)
    assert len(rows) == len(fields)
    return log, rows


@given(st.binary(max_size=300) | st.binary(min_size=250, max_size=1200))
def test_crc(data: bytes) -> None:
    assert_equal_results("crc32", data)


@given(st.text(st.characters()) | st.text(st.characters(codec="ascii")))
def test_java_hash(text: str) -> None:
    assert_equal_results("java_hash", text)


hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


@given(
    at=st.integers(0, 60),
    offsets_and_times=st.tuples(longs, longs, longs),
    numbers=st.tuples(ints, ints),
    sys_flag=ints,
    born=longs,
    hosts_as_flagged=st.booleans(),
    born_host=hosts,
    store_host=hosts,
    counters=st.tuples(ints, longs),
    parts=st.tuples(st.binary(max_size=99), st.binary(max_size=130), st.binary(max_size=99)),
    publish=st.booleans(),
)
def test_encode_record(
    at, offsets_and_times, numbers, sys_flag, born, hosts_as_flagged, born_host, store_host, counters, parts, publish
) -> None:
    if hosts_as_flagged:
        sys_flag = with_hosts(sys_flag, born_host, store_host)
    fields = (*offsets_and_times, *numbers, sys_flag, born, born_host, store_host, *counters, *parts, publish)
    assert_equal_writes("encode_record", 420, at, *fields)


@given(st.integers(-2, 120), st.integers(-2, 120), st.binary(max_size=120))
def test_publishing(at: int, size: int, data: bytes) -> None:
    assert_equal_writes("publish", 100, at, size)
    assert_equal_writes("write_blank", 100, at, size)
    assert_equal_writes("copy_published", 100, at, data)


@given(st.integers(-2, 120), st.integers(-2, 120), st.sampled_from([0, 0xDAA320A7, 0xDAA320AB]))
def test_publishing_with_a_magic(at: int, size: int, magic: int) -> None:
    assert_equal_writes("publish", 100, at, size, magic)


@given(st.lists(records, max_size=4), st.integers(-2, 500), st.integers(-2, 500), st.integers(-200, 500))
def test_taking_back(fields: list[dict], start: int, stop: int, first_size: int) -> None:
    log, _ = log_and_rows(fields)
    assert_equal_writes("take_back", len(log), start, stop, first_size, before=bytes(log))
    assert_equal_writes("take_back", len(log), 0, len(log), first_size, before=bytes(log))


flips = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=6)


@given(st.lists(records, max_size=6), st.sampled_from([0, 8, 50]), flips, st.integers(0, 900), st.integers(0, 900))
@settings(max_examples=300)
def test_walk_check_and_find_on_damaged_logs(
    fields: list[dict], blank: int, changes: list[tuple[int, int]], start: int, stop: int
) -> None:
    log, _ = log_and_rows(fields)
    log += bytes(blank)
    if blank:
        plain.write_blank(log, len(log) - blank, blank)
    for at, value in changes:
        if log:
            log[at % len(log)] = value
    for check_crc in (True, False):
        for begin, end in ((0, len(log)), (start, stop), (0, 2**40)):
            assert_equal_results("walk", log, 0, begin, end, check_crc, None, 4)
            assert_equal_results("find_record", log, 0, begin, end, check_crc)
        for at in range(0, len(log) + 2, 7):
            assert_equal_results("check_record", log, at, 0, check_crc)


@given(st.lists(records, max_size=6), flips, st.integers(0, 60))
def test_pages_are_split_alike_also_damaged_ones(fields: list[dict], changes: list[tuple[int, int]], cut: int) -> None:
    page = b"".join(make_record(number * 1000, **field) for number, field in enumerate(fields))
    assert_equal_results("split_records", page)
    found, at, reason = plain.split_records(page)
    assert (len(found), at, reason) == (len(fields), len(page), 0)
    for record, field in zip(found, fields, strict=True):
        whole = decode_record(record[0])
        assert record[1:4] == (whole.topic, whole.queue_offset, whole.reconsume_times)
        assert record[4] == whole.body == field["body"]
    damaged = bytearray(page)
    for at, value in changes:
        if damaged:
            damaged[at % len(damaged)] = value
    assert_equal_results("split_records", damaged)
    assert_equal_results("split_records", damaged[: len(damaged) - cut])


@given(
    garbage | st.binary(min_size=91, max_size=300).map(lambda data: data[:4] + b"\xda\xa3\x20\xa7" + data[8:]), longs
)
def test_walk_check_and_find_on_garbage(data: bytes, base: int) -> None:
    for at in (0, 1, len(data)):
        assert_equal_results("check_record", data, at, base, True)
        assert_equal_results("walk", data, base, at, len(data), True, None, 10)
        assert_equal_results("find_record", data, base, at, len(data), False)
        assert_equal_results("find_property", data, at, b"KEYS")
        assert_equal_results("decode_records", data, at, 3, Record)


@given(st.data())
def test_a_header_of_any_numbers_is_judged_alike(data: st.DataObject) -> None:
    record = bytearray(make_record(0, b"body", properties=b"a\x01b"))
    near = st.integers(-3, 120) | ints
    for at, size in ((0, 4), (28, 8), (36, 4), (84, 4), (92, 1), (94, 2)):
        if data.draw(st.booleans()):
            value = data.draw(near) % 256**size
            record[at : at + size] = value.to_bytes(size, "big")
    if data.draw(st.booleans()):
        record[7] = 0xAB
    assert_equal_results("check_record", record, 0, 0, True)
    assert_equal_results("walk", record, 0, 0, len(record), True, None, 10)
    assert_equal_results("find_property", record, 0, b"a")
    assert_equal_results("decode_records", record, 0, 1, Record)


born_hosts = st.sampled_from(["127.0.0.1:10911", "1.2.3.4:65535", "[1050::5:600:300c:326b]:1"])


@given(st.lists(st.tuples(records, born_hosts), max_size=6), st.integers(-1, 7), flips)
def test_records_one_after_the_other_are_decoded_alike(
    fields: list[tuple[dict, str]], most: int, changes: list[tuple[int, int]]
) -> None:
    log = bytearray()
    for field, born_host in fields:
        log += make_record(7, born_host=born_host, **field)
    decoded = plain.decode_records(log, 0, 100, Record)
    assert len(decoded) == len(fields)
    assert_equal_results("decode_records", log, 0, 100, Record)
    assert_equal_results("decode_records", log, 0, most, Record)
    for at, value in changes:
        if log:
            log[at % len(log)] = value
    assert_equal_results("decode_records", log, 0, 100, Record)


@given(st.lists(records, max_size=8))
def test_topics_are_numbered_alike(fields: list[dict]) -> None:
    log, rows = log_and_rows(fields)
    table = _compiled.TopicTable()
    walked, _, _ = _compiled.walk(log, 0, 0, len(log), True, table, 1000)
    assert walked.tolist() == rows.tolist()
    assert table.names == list(dict.fromkeys(field["topic"] for field in fields))


@given(st.lists(records, max_size=6), st.lists(st.integers(0, 2**40), max_size=3).map(tuple))
def test_tag_codes(fields: list[dict], levels: tuple[int, ...]) -> None:
    log, rows = log_and_rows(fields)
    other = rows.copy()
    _compiled.tag_codes(log, 0, rows, levels)
    plain.tag_codes(log, 0, other, levels)
    assert rows.tolist() == other.tolist()


@given(st.lists(records, max_size=6))
def test_groups_and_properties(fields: list[dict]) -> None:
    log, rows = log_and_rows(fields)
    assert_equal_results("group_rows", rows)
    for at in rows["physical_offset"].tolist():
        for name in (b"KEYS", b"TAGS", b"", b"\x01", b"a"):
            assert_equal_results("find_property", log, at, name)


@given(st.binary(min_size=104, max_size=104), garbage, longs)
def test_rows_of_garbage_are_refused_alike(row: bytes, data: bytes, base: int) -> None:
    rows = np.frombuffer(row, dtype=ROW).copy()
    assert_equal_results("tag_codes", data, base, rows, (1000,))
    assert_equal_results("group_rows", rows)


SLOTS, ITEMS = 3, 8
INDEX_SIZE = 40 + 4 * SLOTS + 20 * ITEMS
times = longs | st.integers(1_600_000_000_000, 1_600_000_100_000)
keys = st.lists(st.tuples(st.integers(-1, 12) | st.integers(0, 2**31 - 1), longs, times), max_size=10)
small = st.integers(0, 9).map(lambda number: number.to_bytes(4, "big"))
index_files = (
    st.just(bytes(INDEX_SIZE))
    | st.binary(min_size=INDEX_SIZE, max_size=INDEX_SIZE)
    | st.tuples(
        st.binary(min_size=32, max_size=32),
        st.lists(small, min_size=(INDEX_SIZE - 32) // 4, max_size=(INDEX_SIZE - 32) // 4).map(b"".join),
    ).map(b"".join)
)


@given(index_files, keys)
def test_index_put(before: bytes, entries: list[tuple[int, int, int]]) -> None:
    hashes, offsets, stamps = zip(*entries, strict=True) if entries else ((), (), ())
    columns = np.array(hashes, np.int32), np.array(offsets, np.int64), np.array(stamps, np.int64)
    assert_equal_writes("index_put", 0, SLOTS, ITEMS, *columns, before=before)


@given(index_files, st.integers(-1, 12), longs | st.just(2**70), longs, st.integers(-1, 9), st.integers(-1, 9))
def test_index_find(file: bytes, hashed: int, begin: int, end: int, item: int, limit: int) -> None:
    assert_equal_results("index_find", file, SLOTS, ITEMS, hashed, begin, end, item, limit)
    assert_equal_results("index_find", file, SLOTS, ITEMS, hashed, -(2**70), 2**70, item, limit)


@given(index_files, st.integers(-1, 9), st.integers(-1, 9), st.integers(0, 4), st.integers(0, 9))
def test_index_rewind(before: bytes, count: int, new_count: int, slots: int, items: int) -> None:
    assert_equal_writes("index_rewind", 0, slots, items, count, new_count, before=before)


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(0, 40))
def test_a_whole_file(bodies: list[bytes], tail: int) -> None:
    file = make_file(bodies, 512, tail=tail)
    assert_equal_results("walk", file, 512, 0, len(file), True, None, 1000)


@settings(max_examples=60)
@given(
    bodies=st.lists(st.binary(max_size=30), min_size=1, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9), st.integers(-9, 400)), max_size=3),
    most=st.integers(1, 5),
)
def test_pages_agree_also_on_units_that_claim_nonsense(
    bodies: list[bytes], changes: list[tuple[int, int, int]], most: int
) -> None:
    log = bytearray()
    places: list[tuple[int, int]] = []
    for number, body in enumerate(bodies):
        record = make_record(len(log), body, topic="T", queue_offset=number)
        places.append((len(log), len(record)))
        log += record
    for number, step, size in changes:
        offset, _ = places[number % len(places)]
        places[number % len(places)] = (offset + step, size)
    units = b"".join(pack_unit(offset, size, 0) for offset, size in places)
    call = (units, 0, len(units), 0, b"T", 0, bytes(log), 0, len(log), 4096, 0, len(log), most, 0, 0, None, ())
    pages = [twin.PageReader(1 << 30, 32, 1 << 18, 8, 1 << 16, True).read(*call) for twin in (_compiled, plain)]
    assert plain_value(pages[0]) == plain_value(pages[1])


@settings(max_examples=60)
@given(
    count=st.integers(1, 6),
    units=st.lists(st.tuples(st.integers(-1, 2), st.integers(-1, 4), st.integers(-1, 70)), max_size=4).map(sorted),
    wrong=st.lists(st.integers(0, 5), max_size=2),
    check_crc=st.booleans(),
    end=st.integers(0, 900),
)
def test_many_keys_are_found_confirmed_and_decoded_alike(
    count: int, units: list[tuple[int, int, int]], wrong: list[int], check_crc: bool, end: int
) -> None:
    log, index = bytearray(), bytearray(INDEX_SIZE)
    offsets = []
    for number in range(count):
        offsets.append(len(log))
        properties = encode_properties({"KEYS": f"k{number % 3} all"})
        log += make_record(len(log), b"body", topic="T", queue_offset=number, properties=properties)
    size = len(log) // count
    for place in wrong:
        log[offsets[place % count] + 90] ^= 1
    keys = ["all", "none", "all"]
    hashes = np.full(count, key_hash("T", "all"), np.int32)
    plain.index_put(index, SLOTS, ITEMS, hashes, np.array(offsets, np.int64), np.zeros(count, np.int64))
    targets = b"".join(pack_unit(offset, size, 0) for offset in offsets)
    files = [UnitFile(queue, first, readable, targets[first * 20 :]) for queue, first, readable in units if first >= 0]
    call = (b"T", [bytes(index)], SLOTS, ITEMS, [bytes(log)], 0, len(log), end, 0, 2**63 - 1, check_crc, files)
    assert_equal_results("find_keys", keys, *call)
    asked = np.array([*offsets, 7, -1, 2**62], np.int64)
    assert_equal_results("decode_at", asked, [bytes(log)], 0, len(log), end, Record)
    assert_equal_results("decode_at", asked, [bytes(log)], 0, 0, end, Record)
