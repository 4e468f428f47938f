"""dump, log, get, query and offset answer exactly what was put."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import as_v2, make_record

from penstock.format import kernels
from penstock.format.record import decode_record
from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from cli.conftest import Filled, Run

T0 = 1_600_000_000_000
FIELDS = [
    *("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code", "flag", "sys_flag"),
    *("born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume_times"),
    *("prepared_transaction_offset", "properties", "body", "body_text", "body_crc", "msg_id"),
]


def places(objects: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(each["topic"], each["queue_id"], each["queue_offset"]) for each in objects]


def bodies(objects: list[dict[str, Any]]) -> list[bytes]:
    return [b64decode(each["body"]) for each in objects]


def test_dump_has_every_field_of_every_message(run: Run, filled: Filled) -> None:
    found = {each["physical_offset"]: each for each in run("store", "dump", filled.path, "--json").done().objects}
    third, ack = found[filled.acks[2].physical_offset], filled.acks[2]
    assert list(third) == FIELDS
    assert third == {
        "topic": "orders",
        "queue_id": 0,
        "queue_offset": 1,
        "physical_offset": ack.physical_offset,
        "size": ack.size,
        "tags_code": kernels.java_hash("paid"),
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": T0 + 2000,
        "born_host": "127.0.0.1:0",
        "store_timestamp": T0 + 2000,
        "store_host": "127.0.0.1:10911",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "properties": {"KEYS": "order_2 all", "TAGS": "paid", "colour": "rot, grün"},
        "body": "dHdv",
        "body_text": "two",
        "body_crc": kernels.crc32(b"two"),
        "msg_id": ack.msg_id,
    }
    assert found[filled.acks[0].physical_offset]["flag"] == 5
    assert found[filled.acks[1].physical_offset]["reconsume_times"] == 2
    assert found[filled.acks[7].physical_offset]["born_timestamp"] == T0 - 7


def test_hosts_are_ip_and_port_and_ipv6_stands_in_brackets(run: Run, filled: Filled) -> None:
    (alert,) = run("store", "dump", filled.path, "--topic", "Alerts", "--json").done().objects
    assert (alert["born_host"], alert["store_host"]) == ("[1050::5:600:300c:326b]:99", "[::1]:10911")
    assert bodies([alert]) == [b"\x00\xff"]


def test_dump_is_ordered_by_topic_queue_and_offset(run: Run, filled: Filled) -> None:
    dumped = run("store", "dump", filled.path, "--json").done().objects
    assert places(dumped) == [
        ("Alerts", 0, 0),
        ("SCHEDULE_TOPIC_XXXX", 2, 0),
        ("orders", 0, 0),
        ("orders", 0, 1),
        ("orders", 0, 2),
        ("orders", 1, 0),
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--topic", "orders", "--queue", "1"], [("orders", 1, 0)]),
        (["--queue", "1"], [("orders", 1, 0)]),
        (["--topic", "orders", "--from", "1"], [("orders", 0, 1), ("orders", 0, 2)]),
        (["--topic", "orders", "--limit", "2"], [("orders", 0, 0), ("orders", 0, 1)]),
        (["--limit", "0"], []),
        (["--topic", "nobody"], []),
        (["--from", "99"], []),
    ],
)
def test_dump_shows_only_what_is_asked_for(
    run: Run, filled: Filled, options: list[str], expected: list[object]
) -> None:
    assert places(run("store", "dump", filled.path, "--json", *options).done().objects) == expected


@pytest.mark.parametrize("verb", ["dump", "log"])
def test_no_body_leaves_out_the_body_and_nothing_else(run: Run, filled: Filled, verb: str) -> None:
    first = run("store", verb, filled.path, "--no-body", "--json").done().objects[0]
    assert list(first) == [field for field in FIELDS if field not in ("body", "body_text")]


def test_a_delayed_message_shows_the_time_of_its_unit(run: Run, filled: Filled) -> None:
    stored = T0 + 6000
    (late,) = run("store", "dump", filled.path, "--topic", "SCHEDULE_TOPIC_XXXX", "--json").done().objects
    logged = run("store", "log", filled.path, "--json").done().objects[6]
    assert late["tags_code"] == logged["tags_code"] == stored + 10_000
    other = run("store", "log", filled.path, "--set", "messageDelayLevel=1s 2s 7s", "--json").done().objects[6]
    assert other["tags_code"] == stored + 7_000


def test_log_shows_every_record_in_log_order(run: Run, filled: Filled) -> None:
    logged = run("store", "log", filled.path, "--json").done().objects
    assert [each["physical_offset"] for each in logged] == [ack.physical_offset for ack in filled.acks]
    assert bodies(logged) == [message.body for message in filled.messages]
    assert all(list(each) == FIELDS for each in logged)
    rolled_back = logged[4]
    assert (rolled_back["sys_flag"], rolled_back["prepared_transaction_offset"]) == (0xC, 3)
    dumped = {each["physical_offset"]: each for each in run("store", "dump", filled.path, "--json").done().objects}
    assert all(each == dumped.get(each["physical_offset"], each) for each in logged)


def test_log_needs_neither_queues_nor_index_nor_checkpoint(run: Run, filled: Filled) -> None:
    before = run("store", "log", filled.path, "--json").done().out
    for name in ("consumequeue", "index", "checkpoint", "lock"):
        (filled.path / name).rename(filled.path.parent / name)
    assert run("store", "log", filled.path, "--json").done() == (0, before, "")


def test_log_shows_fillers_damage_and_records_of_5x(run: Run, tmp_path: Path) -> None:
    size = 1024
    first = make_record(0, b"first", topic="T" * 9)
    longer = as_v2(make_record(len(first), b"second", topic="T" * 9), b"T" * 9)
    file = bytearray(first + longer)
    damaged_at = len(file)
    file += b"\x01" * 50
    last_at = len(file)
    last = make_record(last_at, b"last")
    file += last
    blank_at = len(file)
    file += bytes(size - len(file))
    kernels.write_blank(file, blank_at, size - blank_at)
    write_log(tmp_path, file, make_record(size, b"next file").ljust(size, b"\0"))

    first_line, second_line, damage, last_line, blank, next_line = (
        run("store", "log", tmp_path, "--json").done().objects
    )
    assert bodies([first_line, second_line, last_line, next_line]) == [b"first", b"second", b"last", b"next file"]
    assert second_line["topic"] == "T" * 9
    assert damage == {"kind": "damage", "physical_offset": damaged_at, "size": 50, "reason": "BAD_MAGIC"}
    assert blank == {"kind": "blank", "physical_offset": blank_at, "size": size - blank_at, "reason": "BLANK"}


def test_log_shows_what_a_start_would_cut_off(run: Run, tmp_path: Path) -> None:
    good = make_record(0, b"good")
    torn = make_record(len(good), b"torn off in the middle")[:60]
    write_log(tmp_path, bytearray(good + torn).ljust(1024, b"\0"))
    objects = run("store", "log", tmp_path, "--json").done().objects
    last_byte = len((good + torn).rstrip(b"\0"))
    assert objects[1]["kind"] == "damage"
    assert (objects[1]["physical_offset"], objects[1]["size"]) == (len(good), last_byte - len(good))


def test_log_calls_the_unwritten_end_of_a_file_damage_if_the_log_goes_on_behind_it(run: Run, tmp_path: Path) -> None:
    size, first = 1024, make_record(0, b"first")
    write_log(tmp_path, first.ljust(size, b"\0"), make_record(size, b"next").ljust(size, b"\0"))
    found, damage, following = run("store", "log", tmp_path, "--json").done().objects
    assert bodies([found, following]) == [b"first", b"next"]
    assert damage == {
        "kind": "damage",
        "physical_offset": len(first),
        "size": size - len(first),
        "reason": "UNWRITTEN",
    }


def write_log(folder: Path, *files: bytes | bytearray) -> None:
    (folder / "commitlog").mkdir(parents=True)
    for number, data in enumerate(files):
        (folder / "commitlog" / f"{number * len(files[0]):020d}").write_bytes(data)


def test_get_answers_a_page(run: Run, filled: Filled) -> None:
    page = run("store", "get", filled.path, "--topic", "orders", "--queue", 0, "--offset", 1, "--json").done().json
    assert list(page) == ["status", "next_begin_offset", "min_offset", "max_offset", "messages"]
    assert [page[field] for field in list(page)[:4]] == ["FOUND", 3, 0, 3]
    assert bodies(page["messages"]) == [b"two", b"three"]
    assert list(page["messages"][0]) == FIELDS
    assert page["messages"][0]["tags_code"] == kernels.java_hash("paid")


@pytest.mark.parametrize(
    ("options", "status", "go_on", "found"),
    [
        (["--queue", 0, "--offset", 0, "--max", 1], "FOUND", 1, [b"zero"]),
        (["--queue", 1, "--offset", 0, "--tags", "paid || refunded"], "FOUND", 1, [b"one"]),
        (["--queue", 1, "--offset", 0, "--tags", "paid"], "NO_MATCHED_MESSAGE", 1, []),
        (["--queue", 0, "--offset", 3], "OFFSET_OVERFLOW_ONE", 3, []),
        (["--queue", 0, "--offset", 10**15], "OFFSET_OVERFLOW_BADLY", 3, []),
        (["--queue", 0, "--offset", -1], "OFFSET_TOO_SMALL", 0, []),
        (["--queue", 99, "--offset", 0], "NO_MESSAGE_IN_QUEUE", 0, []),
    ],
)
def test_get_answers_a_status(
    run: Run, filled: Filled, options: list[object], status: str, go_on: int, found: list[bytes]
) -> None:
    page = run("store", "get", filled.path, "--topic", "orders", "--json", *options).done().json
    assert (page["status"], page["next_begin_offset"], bodies(page["messages"])) == (status, go_on, found)


def test_an_unknown_topic_is_a_status_and_no_error(run: Run, filled: Filled) -> None:
    page = run("store", "get", filled.path, "--topic", "nobody", "--queue", 0, "--offset", 0, "--json").done().json
    assert page == {
        "status": "NO_MESSAGE_IN_QUEUE",
        "next_begin_offset": 0,
        "min_offset": 0,
        "max_offset": 0,
        "messages": [],
    }
    unknown = ("--topic", "nobody", "--queue", 0)
    assert run("store", "offset", filled.path, *unknown, "--timestamp", T0, "--json").done().json == {"offset": 0}
    assert run("store", "query", filled.path, "--topic", "nobody", "--key", "all").done().out == ""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["dump", "--topic", "oders"], "this store has no topic oders; it has Alerts, "),
        (["dump", "--topic", "orders", "--queue", 7], "topic orders has no queue 7; it has 0, 1."),
        (["dump", "--queue", 7], "this store has no queue 7; it has Alerts, "),
        (["query", "--topic", "oders", "--key", "all"], "this store has no topic oders; it has Alerts, "),
        (["query", "--topic", "orders", "--key", "al"], "no message of orders with key al"),
    ],
)
def test_who_gets_nothing_is_told_what_there_is(run: Run, filled: Filled, asked: list[object], said: str) -> None:
    verb, *options = asked
    ran = run("store", verb, filled.path, *options, "--json").done()
    assert ran.out == ""
    assert said in ran.err
    assert run("store", "dump", filled.path, "--topic", "orders", "--from", 100).done().err == "", "that is its end"


def test_query_finds_by_key_within_both_times(run: Run, filled: Filled) -> None:
    def found(*options: object) -> list[bytes]:
        asked = ("store", "query", filled.path, "--topic", "orders", "--key", "all", "--json", *options)
        return bodies(run(*asked).done().objects)

    assert found() == [b"zero", b"one", b"two", b"three"]
    assert found("--begin", T0 + 1000, "--end", T0 + 2000) == [b"one", b"two"]
    assert found("--begin", T0 + 1001, "--end", T0 + 1999) == []
    assert found("--max", 2) == [b"two", b"three"]


def test_query_shows_the_same_object_as_dump(run: Run, filled: Filled) -> None:
    (found,) = run("store", "query", filled.path, "--topic", "orders", "--key", "order_1", "--json").done().objects
    (dumped,) = run("store", "dump", filled.path, "--queue", 1, "--json").done().objects
    assert found == dumped


def test_query_finds_a_prepared_message_that_has_no_unit(run: Run, filled: Filled) -> None:
    (found,) = run("store", "query", filled.path, "--topic", "half", "--key", "half_1", "--json").done().objects
    assert (found["physical_offset"], found["tags_code"]) == (filled.acks[3].physical_offset, 0)


def test_query_answers_as_many_as_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "s", Settings.dev()) as store:
        store.put_many([Message("orders", b"%d" % number, keys=("all",)) for number in range(100)])
    asked = ("store", "query", tmp_path / "s", "--topic", "orders", "--key", "all", "--max", 90, "--json")
    assert len(run(*asked).done().objects) == 90
    assert len(run(*asked, "--set", "maxMsgsNumBatch=7").done().objects) == 7


@pytest.mark.parametrize(
    ("boundary", "time", "offset"),
    [
        ("nearest", T0 + 400, 0),
        ("nearest", T0 + 1900, 1),
        ("lower", T0 + 1, 1),
        ("lower", T0 + 2000, 1),
        ("lower", T0 + 9999, 3),
        ("upper", T0 + 1999, 0),
        ("upper", T0 + 2000, 1),
        ("upper", T0 - 1, 0),
    ],
)
def test_offset_finds_by_time(run: Run, filled: Filled, boundary: str, time: int, offset: int) -> None:
    asked = ("store", "offset", filled.path, "--topic", "orders", "--queue", 0, "--timestamp", time)
    assert run(*asked, "--boundary", boundary, "--json").done().json == {"offset": offset}
    assert run(*asked, "--boundary", boundary).done().out == f"{offset}\n"


def test_units_whose_record_is_damaged_are_left_out(run: Run, filled: Filled) -> None:
    path, ack = filled.path / "commitlog" / ("0" * 20), filled.acks[2]
    data = bytearray(path.read_bytes())
    at = data.index(b"two")
    data[at] ^= 1
    path.write_bytes(data)
    dumped = run("store", "dump", filled.path, "--topic", "orders", "--json").done().objects
    assert bodies(dumped) == [b"zero", b"three", b"one"]
    page = run("store", "get", filled.path, "--topic", "orders", "--queue", 0, "--offset", 0, "--json").done().json
    assert bodies(page["messages"]) == [b"zero", b"three"]
    damage = [each for each in run("store", "log", filled.path, "--json").done().objects if "kind" in each]
    assert damage == [
        {"kind": "damage", "physical_offset": ack.physical_offset, "size": ack.size, "reason": "BAD_CRC"},
    ]


def test_text_is_one_line_a_message_and_cannot_steer_a_terminal(run: Run, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "s", Settings.dev()) as store:
        store.put(Message("orders", b"\x1b[31m red\n", keys=("a", "b"), tags="t\x1b[2J"))
        store.put(Message("orders", b"\xff\xfe"))
    for verb in (
        ("dump",),
        ("log",),
        ("get", "--topic", "orders", "--queue", 0, "--offset", 0),
        ("query", "--topic", "orders", "--key", "a"),
    ):
        text = run("store", verb[0], tmp_path / "s", *verb[1:]).done().out
        assert "\\x1b[31m red\\n" in text
        assert "tag t\\x1b[2J" in text
        assert "\x1b" not in text
    assert run("store", "dump", tmp_path / "s").done().out.count("\n") == 2
    assert "fffe" in run("store", "dump", tmp_path / "s").done().out


def test_names_that_are_not_utf8_survive_as_json(run: Run, tmp_path: Path) -> None:
    record = make_record(0, b"body", properties=b"n\xffme\x01v\xfelue")
    write_log(tmp_path, record.ljust(1024, b"\0"))
    (found,) = run("store", "log", tmp_path, "--json").done().objects
    assert found["properties"] == decode_record(record).properties
    assert run("store", "log", tmp_path).done().out.count("\n") == 1
