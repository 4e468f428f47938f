"""From pages of messages to the rows that Spark wants."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType
from support.pipeline import CORRUPT, Rows, options_for, read
from support.stores import StoreHome, is_one_sentence

from penstock.errors import BadSettings, CorruptData
from penstock.format.arrow_rows import MESSAGE_SCHEMA, select_columns
from penstock.pipeline import source_rows
from penstock.pipeline import source_rows as rows_module
from penstock.pipeline.jobs.job_input import message_columns
from penstock.pipeline.offset_ranges import Flaw, RowPage
from penstock.pipeline.options import Options
from penstock.pipeline.source import check_schema, known_columns, schema_of
from penstock.pipeline.source_rows import ROW_SCHEMA, RowShape
from penstock.store import Message

ZLIB = 0x1


class Given:
    """A task whose messages are given as dictionaries; what they do not say is null."""

    def __init__(self, *pages: tuple[list[dict[str, Any]], Sequence[Flaw]]) -> None:
        self._pages = pages
        self.asked: list[tuple[str, ...]] = []

    def pages(self, columns: Sequence[str]) -> Iterator[RowPage]:
        self.asked.append(tuple(columns))
        schema = select_columns(columns)
        for messages, flaws in self._pages:
            arrays = [pa.array([message.get(field.name) for message in messages], field.type) for field in schema]
            yield RowPage("a", pa.RecordBatch.from_arrays(arrays, schema=schema), tuple(flaws))


def shaped(task: Given, names: Sequence[str] = (), **given: object) -> Rows:
    options = options_for("/somewhere", **{"order": "log", **given})
    known = known_columns(options)
    schema = StructType([StructField(name, known[name]) for name in names]) if names else schema_of(options)
    shape = RowShape.of(options, schema.names)
    return [row for batch in shape.batches(task, to_arrow_schema(schema, timezone="UTC")) for row in batch.to_pylist()]


def message(number: int, body: bytes = b"", **more: Any) -> dict[str, Any]:
    place = {"topic": "T", "queue_id": 0, "queue_offset": number, "physical_offset": number * 100}
    return {**place, "body": body, "sys_flag": 0, "keys": [], "properties": [], **more}


# -- columns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "given", "asked"),
    [
        (("topic",), {}, ("topic", "physical_offset")),
        (("topic",), {"mode": "DROPMALFORMED"}, ("topic",)),
        (("body",), {"mode": "DROPMALFORMED"}, ("body", "sys_flag")),
        (("body",), {"mode": "DROPMALFORMED", "decompress": False}, ("body",)),
        (("broker", CORRUPT), {"mode": "DROPMALFORMED"}, ("physical_offset",)),
        (("broker",), {"order": "queue", "topic": "T"}, ("queue_offset",)),
        (("flag",), {"tags": "a", "subscribe": "T", "mode": "DROPMALFORMED"}, ("topic", "tags", "flag")),
        (("timestamp", "key"), {"schema": "kafka", "mode": "DROPMALFORMED"}, ("properties", "store_timestamp")),
        (("timestampType",), {"schema": "kafka", "mode": "DROPMALFORMED"}, ("physical_offset",)),
    ],
)
def test_only_what_is_needed_is_read(names: tuple[str, ...], given: dict[str, object], asked: tuple[str, ...]) -> None:
    task = Given(([message(1, store_timestamp=0)], ()))
    shaped(task, names, **given)
    assert task.asked == [asked]


def test_columns_come_in_the_order_in_which_they_are_asked_for() -> None:
    task = Given(([message(1, b"one")], ()))
    assert [list(row.items()) for row in shaped(task, columns="body,broker,topic")] == [
        [("body", b"one"), ("broker", "a"), ("topic", "T")]
    ]


def test_the_body_may_be_left_out() -> None:
    names = schema_of(options_for("/x", order="log", includeBody=False)).names
    assert names == ["topic", "broker", *(name for name in MESSAGE_SCHEMA.names[1:] if name != "body")]
    assert "value" not in schema_of(options_for("/x", order="log", includeBody=False, schema="kafka")).names


@pytest.fixture
def home(tmp_path: Any) -> StoreHome:
    return StoreHome(tmp_path / "store")


def test_kafkas_columns_have_kafkas_meaning(home: StoreHome) -> None:
    with home.open() as store:
        assert store.put(Message("T", b"one", keys=("k1", "k2"), tags="red", properties={"a": "ü"}, queue_id=2)).ok
        assert store.put(Message("T", b"two", queue_id=2)).ok
    first, second = read(home.path, topic="T", schema="kafka")
    assert first.pop("timestamp").timestamp() * 1000 == home.clock.now
    assert first == {
        "key": b"k1 k2",
        "value": b"one",
        "topic": "T",
        "partition": 2,
        "offset": 0,
        "timestampType": 1,
        "headers": first["headers"],
    }
    assert {header["key"]: header["value"] for header in first["headers"]} == {
        "a": "ü".encode(),
        "KEYS": b"k1 k2",
        "TAGS": b"red",
    }
    assert second["key"] is None
    assert second["offset"] == 1
    assert second["headers"] is None


def test_kafkas_columns_of_a_row_that_cannot_be_read_are_null() -> None:
    flaw = Flaw("T", 0, 1, None, "it is broken")
    task = Given(([message(0, properties=[("a", "1")]), message(2)], [flaw]))
    found = shaped(task, ("offset", "key", "headers", "value", CORRUPT), schema="kafka", order="queue", topic="T")
    assert [row["offset"] for row in found] == [0, 1, 2]
    assert found[1] == {"offset": 1, "key": None, "headers": None, "value": None, CORRUPT: "it is broken"}
    assert found[0]["headers"] == [{"key": "a", "value": b"1"}]


# -- schemas -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ([], "the schema has no columns; at least one is needed"),
        ([("bodies", StringType(), True)], "the schema has a column 'bodies'; there are topic, broker, "),
        ([("queue_id", LongType(), True)], "the schema has bigint for column 'queue_id', which must be int"),
        ([("queue_id", IntegerType(), False)], "the schema says that column 'queue_id' is never null; leave NOT NULL"),
    ],
)
def test_a_schema_of_the_user_that_does_not_fit_is_said(fields: list[Any], sentence: str) -> None:
    schema = StructType([StructField(*field) for field in fields])
    with pytest.raises(BadSettings) as caught:
        check_schema(schema, options_for("/x", order="log"))
    assert sentence in str(caught.value)
    assert is_one_sentence(str(caught.value))


def test_a_schema_of_the_user_may_have_any_columns_and_the_one_for_damage() -> None:
    schema = StructType([StructField("wrong", StringType()), StructField("queue_id", IntegerType())])
    check_schema(schema, options_for("/x", order="log", columnNameOfCorruptRecord="wrong"))


def test_columns_that_are_not_there_are_said() -> None:
    with pytest.raises(BadSettings, match=r"^columns: there is no column 'value'; there are topic, broker, "):
        schema_of(options_for("/x", order="log", columns="topic,value"))


@pytest.mark.parametrize("name", ["body", "broker"])
def test_the_column_for_damage_may_not_take_the_name_of_another(name: str) -> None:
    with pytest.raises(BadSettings, match=f"^columnNameOfCorruptRecord='{name}' is the name of another column"):
        schema_of(options_for("/x", order="log", columnNameOfCorruptRecord=name))


# -- filters -------------------------------------------------------------------------------------------------------


def test_topics_of_a_log_are_chosen_by_name_or_by_pattern_as_a_whole() -> None:
    task = Given(([message(number, topic=topic) for number, topic in enumerate(["ab", "abc", "b", "ab"])], ()))

    def found(**given: str) -> list[int]:
        return [row["physical_offset"] // 100 for row in shaped(task, ("physical_offset",), **given)]

    assert found() == [0, 1, 2, 3]
    assert found(subscribe="ab,x") == [0, 3]
    assert found(subscribePattern="ab?") == [0, 3]
    assert found(subscribePattern=".*b.*") == [0, 1, 2, 3]
    assert found(subscribePattern="B") == []


def test_a_filter_that_leaves_nothing_leaves_no_batches() -> None:
    task = Given(([message(1)], ()), ([], ()))
    assert shaped(task, tags="red") == shaped(Given(), tags="red") == shaped(task, subscribePattern="x") == []


# -- bodies --------------------------------------------------------------------------------------------------------


def packed(*numbers: int) -> list[dict[str, Any]]:
    return [message(number, zlib.compress(b"%d" % number), sys_flag=ZLIB) for number in numbers]


BROKEN = [*packed(1), message(2, b"no zlib", sys_flag=ZLIB), *packed(3)]


def test_a_body_that_cannot_be_unpacked_stays_and_is_told() -> None:
    found = shaped(Given((BROKEN, ())), ("body", CORRUPT))
    assert [row["body"] for row in found] == [b"1", b"no zlib", b"3"]
    assert [bool(row[CORRUPT]) for row in found] == [False, True, False]
    assert found[1][CORRUPT].startswith("the body cannot be unpacked: ")


def test_a_body_that_cannot_be_unpacked_may_be_left_out_or_end_the_read() -> None:
    assert shaped(Given((BROKEN, ())), ("body",), mode="DROPMALFORMED") == [{"body": b"1"}, {"body": b"3"}]
    with pytest.raises(CorruptData, match=r"^a: the body at physical_offset 200 cannot be unpacked: "):
        shaped(Given((BROKEN, ())), ("body",), mode="FAILFAST")


def test_bodies_may_stay_as_they_are() -> None:
    found = shaped(Given((BROKEN, ())), ("body", CORRUPT), decompress=False)
    assert [row["body"] for row in found] == [each["body"] for each in BROKEN]
    assert {row[CORRUPT] for row in found} == {None}


@pytest.mark.parametrize("kafka", [False, True])
def test_bodies_that_grow_large_come_in_pieces_with_all_their_columns(
    monkeypatch: pytest.MonkeyPatch, kafka: bool
) -> None:
    monkeypatch.setattr(rows_module, "_MAX_PIECE_BYTES", 2)
    messages = [{**each, "properties": [("n", str(number))]} for number, each in enumerate(packed(*range(9)))]
    flaws = [Flaw(None, None, None, place, f"broken {place}") for place in (750, 350, 2000)]
    if kafka:
        found = shaped(Given((messages, flaws)), ("value", "headers", CORRUPT), schema="kafka")
        assert [row["headers"] and int(row["headers"][0]["value"]) for row in found] == [
            0, 1, 2, 3, None, 4, 5, 6, 7, None, 8, None,
        ]  # fmt: skip
    else:
        found = shaped(Given((messages, flaws)), ("physical_offset", "body", CORRUPT))
        places = [row["physical_offset"] for row in found]
        assert places == sorted(places)
        assert [row["body"] for row in found if not row[CORRUPT]] == [b"%d" % number for number in range(9)]
    assert [row[CORRUPT] for row in found if row[CORRUPT]] == ["broken 350", "broken 750", "broken 2000"]


# -- damage --------------------------------------------------------------------------------------------------------


def test_rows_that_cannot_be_read_stand_among_the_others_by_their_place() -> None:
    flaws = [Flaw("T", 0, number, None, f"broken {number}") for number in (5, 0, 2, 3)]
    found = shaped(Given(([message(1), message(4)], flaws)), ("queue_offset", CORRUPT), order="queue", topic="T")
    assert [row["queue_offset"] for row in found] == [0, 1, 2, 3, 4, 5]
    assert [row[CORRUPT] for row in found] == ["broken 0", None, "broken 2", "broken 3", None, "broken 5"]


def test_a_page_of_nothing_but_damage_is_shown() -> None:
    task = Given(([], [Flaw("T", 0, 7, None, "gone")]))
    assert shaped(task, ("queue_offset", "body", "broker"), order="queue", topic="T") == [
        {"queue_offset": 7, "body": None, "broker": "a"}
    ]
    assert shaped(task, ("body",), order="queue", topic="T", mode="DROPMALFORMED") == []
    with pytest.raises(CorruptData, match=r"^a: topic T queue 0: gone; mode=FAILFAST ends the read$"):
        shaped(task, ("body",), order="queue", topic="T", mode="FAILFAST")


# -- batches -------------------------------------------------------------------------------------------------------


def test_small_batches_are_put_together_and_large_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_rows, "_COALESCE_ROWS", 10)
    monkeypatch.setattr(source_rows, "_SMALL_BATCH", 1000)
    sizes = [3, 3, 3, 3, 1, 500, 500, 2]
    first = 0
    pages = []
    for size in sizes:
        pages.append(([message(number) for number in range(first, first + size)], ()))
        first += size
    options = options_for("/x", order="log", columns="physical_offset")
    schema = to_arrow_schema(schema_of(options), timezone="UTC")
    batches = list(RowShape.of(options, schema.names).batches(Given(*pages), schema))
    assert [batch.num_rows for batch in batches] == [12, 501, 500, 2]
    assert [place for batch in batches for place in batch.column(0).to_pylist()] == [100 * n for n in range(first)]


def test_the_columns_without_spark_are_those_of_the_source() -> None:
    assert [*ROW_SCHEMA.names, "unique_key", "_corrupt"] == list(known_columns(Options()))
    assert message_columns() == [name for name in known_columns(Options()) if name != "unique_key"]
