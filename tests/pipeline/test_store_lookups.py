"""Reads that begin with looking something up: keys, tags, times, a group's progress."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.pipeline import Rows, options_for, read, read_tasks
from support.stores import RANDOM_LOG_SIZE, RANDOM_T0, RANDOM_UNITS_PER_FILE, StoreHome

from penstock.errors import BadSettings, BadStore, CorruptData, DataLost
from penstock.format.config_tables import ConsumerOffsets
from penstock.pipeline.scan_plan import plan_batch
from penstock.pipeline.store_read_tasks import RecordTask
from penstock.store import Message
from penstock.store.config_files import ConfigFiles
from penstock.store.files.file_io import Files
from penstock.store.readonly import follow_growing_queues as tail
from penstock.store.readonly.store_folder import StoreFolder

COUNT = 120
SIZES = {"mapped_file_size_commit_log": RANDOM_LOG_SIZE, "mapped_file_size_consume_queue": 20 * RANDOM_UNITS_PER_FILE}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StoreHome]:
    """A store with 60 messages in each of two queues, stored a second apart; it is closed."""
    home = StoreHome(tmp_path / "store")
    with home.open(**SIZES) as store:
        for number in range(COUNT):
            home.clock.now = RANDOM_T0 + number * 1000
            message = Message(
                "orders",
                b"%04d" % number,
                tags=("Aa", "BB", "red", "")[number % 4],
                keys=(f"k{number % 50}", "both"),
                queue_id=number % 2,
                properties={"UNIQ_KEY": f"id{number}"},
            )
            assert store.put(message).ok
        assert store.put(Message("other", b"9999", keys=("k1", "both"))).ok
    yield home
    home.close_all()


@pytest.fixture(params=["closed", "in use"])
def used(request: pytest.FixtureRequest, home: StoreHome) -> StoreHome:
    """The same, closed or open: a store in use is read by its tail."""
    if request.param == "in use":
        home.open(**SIZES)
    return home


def numbers(rows: Rows) -> list[int]:
    return [int(row["body"]) for row in rows]


def of(home: StoreHome, **given: Any) -> list[int]:
    return sorted(numbers(read(home.path, **{"topic": "orders", **given})))


# -- keys and tags -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("k7", [7, 57, 107]),
        ("id7", [7]),
        ("k7,id8,k7 ", None),
        ("k7,id8,k8", [7, 8, 57, 58, 107, 108]),
        ("K7", []),
        ("nothing", []),
        ("both", list(range(COUNT))),
    ],
)
def test_keys_are_exact_and_unique_keys_are_keys_too(used: StoreHome, keys: str, expected: list[int] | None) -> None:
    if expected is None:
        with pytest.raises(BadSettings, match="a name is given twice"):
            of(used, keys=keys)
    else:
        assert of(used, keys=keys) == expected


def test_keys_are_those_of_the_topics_and_offsets_asked_for(used: StoreHome) -> None:
    assert of(used, keys="k1", topic="other") == [9999]
    by_queue = '{"orders": {"0": 50, "1": 0}}'
    assert of(used, keys="both", startingOffsets=by_queue, endingOffsets='{"orders": {"0": 52, "1": 2}}') == [
        1, 3, 100, 102,
    ]  # fmt: skip
    assert of(used, keys="k7", startingTimestamp=RANDOM_T0 + 57_000) == [57, 107]
    assert numbers(read(used.path, assign='{"orders": [0]}', keys="k7,k8")) == [8, 58, 108]


def test_keys_may_be_left_out_of_the_columns_and_tags_go_with_them(used: StoreHome) -> None:
    rows = read(used.path, topic="orders", keys="k7,k9", tags="BB", columns="queue_offset")
    assert rows == [{"queue_offset": number // 2} for number in (9, 57, 109)]


def test_a_file_that_is_gone_when_its_keys_are_read_is_a_loss(home: StoreHome) -> None:
    options = options_for(home.path, topic="orders", keys="k7")
    tasks = plan_batch(options)
    home.log_files()[0].unlink()
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        read_tasks(options, tasks)
    options = options_for(home.path, topic="orders", keys="k7", failOnDataLoss=False)
    assert of(home, keys="k7") == [57, 107], "what is gone before the plan is not asked for"
    tasks = plan_batch(options)
    home.log_files()[0].unlink()
    assert numbers(read_tasks(options, tasks)) in ([57, 107], [107])


def test_without_an_index_a_sentence_says_so(home: StoreHome) -> None:
    conf = home.path.parent / "broker.conf"
    conf.write_text("messageIndexEnable=false\n")
    with pytest.raises(BadStore, match="there is no index: messageIndexEnable is false"):
        of(home, keys="k7", config=conf)


def test_an_index_that_was_removed_is_built_again_for_the_read(home: StoreHome) -> None:
    for path in home.index_files():
        path.unlink()
    assert of(home, keys="k7") == [7, 57, 107]
    assert home.index_files() == []


def refuse_views(monkeypatch: pytest.MonkeyPatch) -> None:
    def view(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a store was opened with recovery")

    monkeypatch.setattr(StoreFolder, "view", view)


def test_keys_and_times_are_found_without_opening_the_store(used: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_views(monkeypatch)
    assert of(used, keys="k7,id8") == [7, 8, 57, 107]
    for order in ("queue", "log"):
        assert of(used, order=order, startingTimestamp=RANDOM_T0 + 118_000) == [118, 119]


def test_messages_that_the_index_does_not_have_yet_are_found(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    store = home.open(**SIZES)
    assert store.index is not None
    monkeypatch.setattr(store.index, "append", lambda *_, **__: None)
    for number in (500, 501, 502):
        assert store.put(Message("orders", b"%d" % number, keys=("k7",) if number < 502 else ())).ok
    store.catch_up()
    with monkeypatch.context() as patched:
        refuse_views(patched)
        assert of(home, keys="k7") == [7, 57, 107, 500, 501]
    monkeypatch.setattr(tail, "_MAX_UNINDEXED", 2)
    assert of(home, keys="k7") == [7, 57, 107, 500, 501], "too many of them: the index is completed in memory"


def test_a_damaged_message_with_the_key_is_damage_and_no_gap(home: StoreHome) -> None:
    (position,) = plan_positions(home, "id7")
    for path in home.log_files():
        if int(path.name) <= position < int(path.name) + RANDOM_LOG_SIZE:
            home.flip(path, position - int(path.name) + 90)
    with pytest.raises(CorruptData, match=f"the record at {position} of the log is damaged"):
        of(home, keys="id7", mode="FAILFAST")


def plan_positions(home: StoreHome, key: str) -> tuple[int, ...]:
    (task,) = plan_batch(options_for(home.path, topic="orders", keys=key))
    assert isinstance(task, RecordTask)
    return task.positions


@pytest.mark.parametrize("order", ["queue", "log"])
def test_tags_are_compared_as_text(used: StoreHome, order: str) -> None:
    """`Aa` and `BB` have the same hash, which is all that a queue knows of them."""
    assert of(used, tags="Aa", order=order) == list(range(0, COUNT, 4))
    assert of(used, tags="BB||red", order=order) == sorted([*range(1, COUNT, 4), *range(2, COUNT, 4)])
    assert of(used, tags="aA", order=order) == []
    assert len(of(used, tags="*", order=order)) == COUNT


# -- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["queue", "log"])
def test_times_are_the_first_message_at_or_after_them(used: StoreHome, order: str) -> None:
    def between(start: int, stop: int) -> list[int]:
        return of(used, order=order, startingTimestamp=RANDOM_T0 + start, endingTimestamp=RANDOM_T0 + stop)

    assert between(0, 10**9) == list(range(COUNT))
    assert between(50_000, 53_000) == [50, 51, 52]
    assert between(49_001, 52_001) == [50, 51, 52]
    assert between(50_000, 50_000) == between(60_000, 50_000) == []
    assert of(used, order=order, endingTimestamp=0) == []
    assert of(used, order=order, startingTimestamp=0) == list(range(COUNT))


@pytest.mark.parametrize("order", ["queue", "log"])
def test_a_time_behind_the_last_message_is_an_error_or_the_end(used: StoreHome, order: str) -> None:
    late = RANDOM_T0 + COUNT * 1000
    with pytest.raises(BadSettings, match=f"has no message stored at or after {late}; set startingOffsetsByTimestampS"):
        of(used, order=order, startingTimestamp=late)
    assert of(used, order=order, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []


def test_times_by_queue(used: StoreHome) -> None:
    start, stop = (
        f'{{"orders": {{"0": {RANDOM_T0 + 50_000}, "1": 0}}}}',
        f'{{"orders": {{"0": {RANDOM_T0 + 54_000}, "1": {RANDOM_T0 + 4}}}}}',
    )
    assert of(used, startingOffsetsByTimestamp=start, endingOffsetsByTimestamp=stop) == [50, 52]


# -- groups --------------------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_its_progress_says(used: StoreHome) -> None:
    tables = ConfigFiles(Files(), used.path / "config")
    tables.consumer_offsets.write(ConsumerOffsets(offsets={("orders", "billing"): {0: 58}, ("other", "idle"): {0: 1}}))
    assert of(used, startingOffsets="group:billing") == sorted([116, 118, *range(1, COUNT, 2)])
    with pytest.raises(BadSettings, match="group 'idle' has no committed offsets here"):
        of(used, startingOffsets="group:idle")


def test_a_store_without_progress_knows_no_group(home: StoreHome) -> None:
    with pytest.raises(BadSettings, match="group 'billing' has no committed offsets"):
        of(home, startingOffsets="group:billing")
