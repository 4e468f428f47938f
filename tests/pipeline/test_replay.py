"""Replaying, below Spark: the pace, and what may be wished for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import BadSettings
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.replay import Mapping, Target, from_export, from_files, from_input
from penstock.pipeline.jobs.replay.batch import paced
from penstock.pipeline.jobs.replay.job import _refuse_circles


class SleepingClock:
    """A clock that advances only by sleeping or working."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("rate", "sizes"), [(50, [1000]), (7, [3, 1, 40, 0, 9]), (1, [4]), (100_000, [250_000])])
@pytest.mark.parametrize("is_slow", [False, True])
def test_no_second_sees_more_rows_than_the_rate_and_a_piece(rate: int, sizes: list[int], is_slow: bool) -> None:
    clock = SleepingClock()
    given = [pa.RecordBatch.from_pydict({"n": pa.array(range(size), pa.int64())}) for size in sizes]
    sent: list[tuple[float, int]] = []
    rows = []
    for number, piece in enumerate(paced(iter(given), rate, clock=clock, sleep=clock.sleep)):
        sent.append((clock.now, piece.num_rows))
        rows += piece.column("n").to_pylist()
        if is_slow and number == 2:
            clock.now += 10  # the broker takes its time, and no burst follows
    assert rows == [n for size in sizes for n in range(size)]
    piece_rows = max(1, rate // 10)
    for begin, _ in sent:
        assert sum(count for moment, count in sent if begin <= moment < begin + 0.999) <= rate + piece_rows
    assert clock.now - 100 >= sum(sizes) / rate - 1e-6, "the last piece has its time, too"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"maps": ("body",)}, "a column and an expression"),
        ({"maps": ("born=1",)}, "'born' is not a message column"),
        ({"to_topic": "a b"}, "--to-topic"),
        ({"to_topic": "SCHEDULE_TOPIC_XXXX"}, "internal to the broker"),
        ({"since_ms": 5, "until_ms": 4}, "ends before it begins"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadSettings, match=expected):
        Mapping(**changes).check()


def test_an_expression_may_hold_equal_signs() -> None:
    assert Mapping(maps=("tags = if(flag = 1, 'a', 'b')",)).columns() == {"tags": "if(flag = 1, 'a', 'b')"}


def test_a_target_is_one_place_and_a_name_is_that_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in (Target(), Target(store="a", namesrv="b:1")):
        with pytest.raises(BadSettings, match="give either --to-store"):
            target.check()
    with pytest.raises(BadSettings, match="are allowed"):
        Target(store="a").progress("../b")
    assert Target(store=str(tmp_path)).progress("n") == tmp_path / "penstock" / "replay" / "n"
    assert Target(store=tmp_path.as_uri()).progress("n") == tmp_path / "penstock" / "replay" / "n"
    assert Target(store=tmp_path.as_uri()).label == str(tmp_path)
    with pytest.raises(BadSettings, match="not in a local file system"):
        Target(store="s3://bucket/store").check()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Target(namesrv="a:1").progress("n") == tmp_path / "penstock" / "replay" / "n"
    assert Target(namesrv="a:1").progress("n", "/p") == Path("/p/n")


def test_a_replay_does_not_read_what_it_writes(tmp_path: Path) -> None:
    here, there = JobInput(stores=(str(tmp_path),)), Target(store=str(tmp_path))
    for mapping in (Mapping(), Mapping(to_topic="a")):
        with pytest.raises(BadSettings, match="name another one"):
            _refuse_circles(from_input(here, "a"), there, mapping)
    _refuse_circles(from_input(here, "a"), there, Mapping(to_topic="b"))
    _refuse_circles(from_input(here, "a"), Target(store=str(tmp_path / "other")), Mapping())
    cluster = from_input(JobInput(namesrv="127.0.0.1:1"), "a")
    with pytest.raises(BadSettings, match="name another one"):
        _refuse_circles(cluster, Target(namesrv="127.0.0.1:1"), Mapping())


def test_a_source_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="no topic is given"):
        from_input(JobInput(stores=("a",))).check()
    with pytest.raises(BadSettings, match="no such folder"):
        from_export(str(tmp_path / "none")).check()
    with pytest.raises(BadSettings, match="it must be one of parquet, json"):
        from_files(str(tmp_path), "csv").check()
