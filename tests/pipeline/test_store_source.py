"""What the tasks of a plan return is what the store returns, however the read is cut."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.arrow import read_log
from support.pipeline import Rows, every_record, options_for, read, row_of
from support.stores import STORES, Made, StoreHome, empty_folder, opened, unpacked

from penstock.errors import BadSettings, BadStore
from penstock.format.record import Record
from penstock.pipeline.scan_plan import check_input
from penstock.store import Message, MessageStore
from penstock.store.readonly.store_folder import find_paths, name_stores

SPLITS = st.fixed_dictionaries(
    {},
    optional={
        "minPartitions": st.integers(1, 40),
        "maxRecordsPerPartition": st.integers(1, 30),
        "maxBytesPerPartition": st.integers(1, 6000),
    },
)
LOG_SPLITS = st.fixed_dictionaries(
    {}, optional={"minPartitions": st.integers(1, 60), "maxBytesPerPartition": st.integers(50, 9000)}
)
FEW = hypothesis_settings(max_examples=15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


def by_queue(store: MessageStore) -> list[Record]:
    """All messages, queue by queue, one by one."""
    return [
        record
        for topic, queue_id in sorted((queue.topic, queue.queue_id) for queue in store.queues)
        for record in StoreHome.read_queue(store, topic, queue_id)
    ]


def with_plain_bodies(records: list[Record]) -> Rows:
    return [{**row_of(record), "body": unpacked(record)} for record in records]


def in_queue_order(rows: Rows) -> Rows:
    """Tasks are read in any order; within a queue the order counts."""
    return sorted(rows, key=lambda row: (row["topic"], row["broker"], row["queue_id"]))


@FEW
@given(STORES, SPLITS)
def test_queues_read_in_any_pieces_are_what_the_store_returns(folder: Path, made: Made, split: dict[str, int]) -> None:
    with empty_folder(folder / "a") as room:
        made.make(room / "store")
        with opened(room / "store", read_only=True) as store:
            expected = by_queue(store)
        rows = read(room / "store", subscribePattern=".*", **split)
    assert in_queue_order(rows) == with_plain_bodies(expected)


@FEW
@given(STORES, LOG_SPLITS)
def test_the_log_read_in_any_pieces_is_what_the_store_returns(folder: Path, made: Made, split: dict[str, int]) -> None:
    with empty_folder(folder / "a") as room:
        made.make(room / "store")
        with opened(room / "store", read_only=True) as store:
            expected = every_record(store)
            rows_of_store = read_log(store)
        rows = read(room / "store", order="log", **split)
        as_stored = read(room / "store", order="log", decompress=False, **split)
    assert rows == with_plain_bodies(expected), "prepared and rolled back ones too"
    assert as_stored == [{**row, "broker": "store"} for row in rows_of_store]


@FEW
@given(STORES, SPLITS, st.booleans())
def test_a_store_whose_writer_was_killed_is_read_as_a_start_would_serve_it(
    folder: Path, made: Made, split: dict[str, int], without_queues: bool
) -> None:
    with empty_folder(folder / "a") as room:
        with opened(room / "open") as store:
            made.fill(store)
            shutil.copytree(room / "open", room / "store")
        if without_queues:
            shutil.rmtree(room / "store" / "consumequeue", ignore_errors=True)
        rows = read(room / "store", subscribePattern=".*", **split)
        log = read(room / "store", order="log")
        with opened(room / "store") as store:
            assert in_queue_order(rows) == with_plain_bodies(by_queue(store))
            assert log == with_plain_bodies(every_record(store))
            assert len(log) == sum(len(put) for put in made.puts)


@FEW
@given(STORES, SPLITS)
def test_a_store_in_use_is_read_up_to_its_last_message(folder: Path, made: Made, split: dict[str, int]) -> None:
    """Records that have no place in a queue, prepared ones, are seen once something behind them is."""
    with empty_folder(folder / "a") as room, opened(room / "store") as store:
        made.fill(store)
        store.catch_up()
        rows = read(room / "store", subscribePattern=".*", **split)
        messages, records = by_queue(store), every_record(store)
        log = read(room / "store", order="log")
    assert in_queue_order(rows) == with_plain_bodies(messages)
    assert log == with_plain_bodies(records[: len(log)])
    assert len(log) >= 1 + max((records.index(message) for message in messages), default=-1)


# -- queue files that are not as they should be --------------------------------------------------------------------


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    """A closed store with 60 messages in each of two queues, tags and keys."""
    folder = tmp_path / "store"
    with opened(folder) as store:
        for number in range(120):
            tags = ("Aa", "BB", "red", "")[number % 4]
            properties = {"UNIQ_KEY": f"id{number}"}
            message = Message(
                "orders", b"%04d" % number, tags=tags, keys=(f"k{number % 50}", "both"), queue_id=number % 2,
                properties=properties,
            )  # fmt: skip
            assert store.put(message).ok
    return folder


def numbers(rows: Rows) -> list[int]:
    return [int(row["body"]) for row in rows]


EVEN_THEN_ODD = [*range(0, 120, 2), *range(1, 120, 2)]


@pytest.mark.parametrize("lost", ["all", "a queue", "a file", "the last file"])
@pytest.mark.parametrize("split", [{}, {"minPartitions": 9}, {"maxRecordsPerPartition": 1}], ids=str)
def test_units_that_are_not_on_disk_travel_with_the_task(store_folder: Path, lost: str, split: dict[str, int]) -> None:
    queue = store_folder / "consumequeue" / "orders" / "1"
    gone = {
        "all": store_folder / "consumequeue",
        "a queue": queue,
        "a file": sorted(queue.iterdir())[2],
        "the last file": sorted(queue.iterdir())[-1],
    }[lost]
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    before = sorted(store_folder.rglob("*"))
    check_input(options_for(store_folder, topic="orders"))
    assert numbers(read(store_folder, topic="orders", **split)) == EVEN_THEN_ODD
    assert sorted(store_folder.rglob("*")) == before, "reading writes nothing"


def test_a_queue_file_of_another_size_is_read_as_a_start_would_build_it(store_folder: Path) -> None:
    path = sorted((store_folder / "consumequeue" / "orders" / "0").iterdir())[1]
    path.write_bytes(path.read_bytes()[:-20])
    check_input(options_for(store_folder, topic="orders"))
    assert numbers(read(store_folder, topic="orders")) == EVEN_THEN_ODD


# -- several stores ------------------------------------------------------------------------------------------------


def test_stores_with_the_same_name_are_told_apart_by_their_paths(tmp_path: Path, store_folder: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(store_folder, tmp_path / name / "store")
    paths = f"{tmp_path}/a/store,{tmp_path}/b/store"
    for rows in (read(paths, topic="orders"), read(f"{tmp_path}/[ab]/store", topic="orders")):
        assert {row["broker"] for row in rows} == {"a/store", "b/store"}
        for broker in ("a/store", "b/store"):
            assert numbers([row for row in rows if row["broker"] == broker]) == EVEN_THEN_ODD
    starting = '{"orders": {"a/store": {"0": 58, "1": -1}, "b/store": {"0": -1, "1": 59}}}'
    rows = read(paths, topic="orders", startingOffsets=starting)
    assert [(row["broker"], row["queue_id"], row["queue_offset"]) for row in rows] == [
        ("a/store", 0, 58), ("a/store", 0, 59), ("b/store", 1, 59),
    ]  # fmt: skip
    rows = read(paths, assign='{"orders": {"b/store": [1]}}')
    assert {(row["broker"], row["queue_id"]) for row in rows} == {("b/store", 1)}
    assert {row["broker"] for row in read(f"{tmp_path}/*/store", order="log")} == {"a/store", "b/store"}


def test_paths_are_folders_globs_and_file_addresses(tmp_path: Path) -> None:
    for name in ("a", "b", "c[1]"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert find_paths([f"{tmp_path}/[ab]"]) == [tmp_path / "a", tmp_path / "b"]
    assert find_paths([f"{tmp_path}/c[1]"]) == [tmp_path / "c[1]"], "a folder with such a name goes first"
    assert find_paths([f"file://{tmp_path}/a", f"{tmp_path}/a", f"{tmp_path}/?"]) == [tmp_path / "a", tmp_path / "b"]
    assert find_paths([f"file:{tmp_path}/a"]) == [tmp_path / "a"]
    assert find_paths([f"{tmp_path}/a", f"{tmp_path}/b/../a", f"{tmp_path}/link"]) == [tmp_path / "a"], "one store once"
    with pytest.raises(BadSettings, match=r"^path '.*/f\*' matches no folder; check the path on this machine$"):
        find_paths([f"{tmp_path}/f*"])


def test_names_are_as_long_as_they_must_be() -> None:
    paths = [Path("/x/a/store"), Path("/y/a/store"), Path("/y/b/other")]
    assert name_stores(paths[1:]) == {"store": paths[1], "other": paths[2]}
    assert name_stores(paths) == {"x/a/store": paths[0], "y/a/store": paths[1], "y/b/other": paths[2]}
    assert name_stores([Path("/a"), Path("/b/a")]) == {"//a": Path("/a"), "b/a": Path("/b/a")}


@pytest.mark.parametrize("what", ["nothing", "file", "folder"])
def test_where_no_store_is_one_sentence_says_so(tmp_path: Path, what: str) -> None:
    path = tmp_path / "store"
    if what == "file":
        path.touch()
    elif what == "folder":
        path.mkdir()
    with pytest.raises(BadStore, match="there is no store here"):
        check_input(options_for(path, topic="orders"))


def test_an_empty_store_has_no_topics_and_an_empty_log(tmp_path: Path) -> None:
    with opened(tmp_path / "store"):
        pass
    assert read(tmp_path / "store", order="log") == []
    assert read(tmp_path / "store", subscribePattern=".*") == []
    with pytest.raises(BadSettings, match=r"there is no topic 'orders' in .*; it has none"):
        check_input(options_for(tmp_path / "store", topic="orders"))
