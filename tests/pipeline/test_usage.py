"""The job `usage`: its counts are those of a plain count over the records, whatever the pieces are."""

from __future__ import annotations

import json
import random
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support.effort import TWINS, running_on
from support.messages import make_record
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.format import kernels
from penstock.pipeline.jobs import usage as counting_module
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.usage import (
    Count,
    Key,
    KeyCounts,
    LogCounter,
    Usage,
    class_end,
    merge,
    page,
    size_class,
    usage_here,
)
from penstock.store import Message, MessageStore, Record


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    return StoreHome(tmp_path / "store")


def fill(home: StoreHome, count: int = 500) -> list[Record]:
    """A store with messages of every kind, over three days; what its log holds."""
    chance = random.Random(7)
    with home.open(mapped_file_size_commit_log=65_536) as store:
        for _ in range(count):
            home.clock.now += chance.randrange(1000, 1_000_000)
            message = Message(
                chance.choice(("orders", "payments", "clicks")),
                chance.randbytes(chance.randrange(3000)),
                tags=chance.choice(("", "中文", "<b>")),
                queue_id=chance.randrange(3),
                sys_flag=chance.choice((0, 0, 0x4, 0x8, 0xC)),
                born_host=f"10.0.0.{chance.randrange(3)}:{chance.randrange(1, 60000)}",
            )
            assert store.put(message).ok
        return records(store)


def records(store: MessageStore) -> list[Record]:
    found, at = [], store.log.min_offset
    while at < store.log.max_offset:
        record = store.look_up(at)
        if record is None:
            at = store.log.roll_next(at)
            continue
        found.append(record)
        at += record.size
    return found


def plain_key(by: str, record: Record) -> Key:
    hour = record.store_timestamp // 3_600_000
    return {
        "topic": Key("topic", "store", record.topic),
        "queue": Key("queue", "store", record.topic, record.queue_id),
        "tag": Key("tag", "store", record.topic, tag=record.tags),
        "producer": Key("producer", "store", record.topic, host=record.born_host.rpartition(":")[0]),
        "hour": Key("hour", "store", record.topic, hour=hour),
        "day": Key("day", "store", record.topic, hour=hour // 24 * 24),
    }[by]


def test_counts_are_those_of_a_plain_count(home: StoreHome) -> None:
    log = fill(home)
    found = usage_here(JobInput(stores=(str(home.path),)))
    assert (found.messages, found.size) == (len(log), sum(record.size for record in log))
    for by in ("topic", "queue", "tag", "producer", "hour", "day"):
        messages = Counter(plain_key(by, record) for record in log)
        sizes: Counter[Key] = Counter()
        for record in log:
            sizes[plain_key(by, record)] += record.size
        assert {key: count for key, count, _ in found.rows(by)} == messages
        assert {key: size for key, _, size in found.rows(by)} == sizes
    orders = dict(found.tally.counts)[Key("topic", "store", "orders")]
    times = [record.store_timestamp for record in log if record.topic == "orders"]
    assert (orders.first_ms, orders.last_ms) == (min(times), max(times))


def test_a_percentile_is_at_most_nine_per_cent_too_large(home: StoreHome) -> None:
    log = fill(home)
    count = dict(usage_here(JobInput(stores=(str(home.path),))).tally.counts)[Key("topic", "store", "payments")]
    sizes = sorted(record.size for record in log if record.topic == "payments")
    for share in (0.5, 0.95, 0.99, 1.0):
        exact = sizes[max(int(-(-share * len(sizes) // 1)) - 1, 0)]
        assert exact <= count.percentile(share) <= exact * 1.0906 + 1


def test_every_size_lies_in_its_class() -> None:
    sizes = np.array([1, 2, 3, 91, 127, 128, 129, 4 << 20, 2**31 - 1], np.int32)
    for size, number in zip(sizes.tolist(), size_class(sizes).tolist(), strict=True):
        assert size <= class_end(number)
        assert number == 0 or class_end(number - 1) < size


def counted(data: bytes, *parts: tuple[kernels.Longs, kernels.Rows]) -> KeyCounts:
    counting = LogCounter("store")
    for part in parts:
        counting.add(data, *part)
    return counting.tally()


def test_tallies_add_up_in_any_order_and_are_the_same_on_both_twins(home: StoreHome) -> None:
    log = fill(home, 60)
    data = home.log_files()[0].read_bytes()
    tallies = []
    for twin in TWINS:
        with running_on(twin):
            rows, _, _ = kernels.walk(data, 0, 0, len(data), True, None, 100)
            assert len(rows) == sum(record.physical_offset < len(data) for record in log) > 20
            starts = rows["physical_offset"].copy()
            parts = [(starts[at : at + 9], rows[at : at + 9]) for at in range(0, len(rows), 9)]
            pieces = [counted(data, part) for part in parts]
            assert merge(pieces) == merge(reversed(pieces)) == counted(data, (starts, rows)) == counted(data, *parts)
            assert merge([]) == KeyCounts() == counted(data, (starts[:0], rows[:0]))
            tallies.append(merge(pieces))
    assert tallies[0] == tallies[-1]


def test_odd_times_addresses_and_texts_are_counted_and_many_keys_need_no_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting_module, "_MAX_TABLE_CODES", 1 << 10)
    log = bytearray()
    for number in range(1500):
        log += make_record(
            len(log),
            b"x",
            topic="T",
            queue_id=number - 3,
            store_timestamp=2**62 if number == 7 else 1_600_000_000_000 + number,
            born_host="[fe80::1]:7" if number % 2 else f"10.0.0.1:{number}",
            properties={"TAGS": f"tag{number}"} if number else {},
        )
    at = log.index(b"tag1")
    log[at : at + 4] = b"\xff\xfe\xff\xfe"
    rows, _, _ = kernels.walk(bytes(log), 0, 0, len(log), True, None, 2000)
    counts = dict(counted(bytes(log), (rows["physical_offset"].copy(), rows)).counts)
    assert counts[Key("topic", "store", "T")].messages == 1500
    assert counts[Key("hour", "store", "T", hour=0)].messages == 1, "a time that no clock can have shown"
    assert counts[Key("producer", "store", "T", host="[fe80::1]")].messages == 750
    assert counts[Key("producer", "store", "T", host="10.0.0.1")].messages == 750
    assert counts[Key("queue", "store", "T", -3)].messages == counts[Key("queue", "store", "T", 1496)].messages == 1
    assert counts[Key("tag", "store", "T")].messages == counts[Key("tag", "store", "T", tag="tag77")].messages == 1
    assert counts[Key("tag", "store", "T", tag="\ufffd" * 4)].messages == 1
    tags = [count for key, count in counts.items() if key.by == "tag"]
    assert sum(sum(count.classes.values()) for count in tags) == len(tags) == 1500


def test_growth_is_told_from_the_last_week(home: StoreHome) -> None:
    with home.open() as store:
        for _ in range(240):
            home.clock.now += 3_600_000
            assert store.put(Message("T", b"x" * 100)).ok
        size = store.log.max_offset // 240
    (disk,) = usage_here(JobInput(stores=(str(home.path),))).disks
    assert disk.per_day == size * 24
    assert disk.days_left == disk.free / disk.per_day
    assert Usage(KeyCounts(), []).messages == 0


def test_an_empty_store_and_damage_are_told(home: StoreHome, tmp_path: Path) -> None:
    home.open().close()
    empty = usage_here(JobInput(stores=(str(home.path),)))
    assert (empty.messages, empty.disks[0].days_left) == (0, None)
    damaged = StoreHome(tmp_path / "damaged")
    with damaged.open() as store:
        damaged.put_numbered(store, 20)
        place = store.queues.find("T", 0).unit(7)[0]  # type: ignore[union-attr]
    damaged.flip(damaged.log_files()[0], place + 90)
    found = usage_here(JobInput(stores=(str(damaged.path),)))
    assert (found.messages, found.tally.flaws) == (19, 1)


def test_several_stores_are_counted_apart(home: StoreHome, tmp_path: Path) -> None:
    fill(home, 20)
    other = home.copy_to(tmp_path / "copy")
    found = usage_here(
        JobInput(
            stores=(
                str(home.path),
                str(other.path),
            )
        )
    )
    assert found.messages == 40
    assert {key.store for key, _, _ in found.rows("topic")} == {"store", "copy"}


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        assert not any(name in ("src", "href") for name, _ in attrs), "the page needs nothing but itself"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_stands_alone_and_escapes_what_producers_chose(home: StoreHome) -> None:
    fill(home)
    parsed = _Text()
    parsed.feed(page(usage_here(JobInput(stores=(str(home.path),)))))
    assert parsed.tags["b"] == parsed.tags["script"] == 0
    assert parsed.tags["svg"] == 5
    assert any("<b>" in text for text in parsed.texts)
    assert any("中文" in text for text in parsed.texts)


def test_the_command_shows_a_table_json_csv_and_a_page(
    home: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = fill(home, 50)
    assert main(["store", "usage", str(home.path), "--by", "queue"]) == 0
    assert f"{len(log)} messages" in capsys.readouterr().out
    assert main(["store", "usage", str(home.path), "--json", "--html", str(tmp_path / "page.html")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["messages"], document["flaws"]) == (50, 0)
    assert {row["by"] for row in document["counts"]} == {"topic", "queue", "tag", "producer", "hour", "day"}
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["store", "usage", str(home.path), "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(document["counts"])
    with StoreHome(tmp_path / "empty").open():
        pass
    assert main(["store", "usage", str(tmp_path / "empty"), "--csv"]) == 0
    assert capsys.readouterr().out.splitlines() == lines[:1], "the columns are there without a row, too"
    assert main(["store", "usage", str(home.path), "--by", "colour"]) == 2
    assert "it must be one of topic, queue" in capsys.readouterr().err
    assert main(["pipeline", "usage"]) == 2
    assert "--store DIR" in capsys.readouterr().err


def test_counts_of_nothing_are_nothing() -> None:
    assert Count().percentile(0.5) == 0
