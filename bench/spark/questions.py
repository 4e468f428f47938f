"""The rows: what is asked of each place, and how long Spark takes from `load` to the answer."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow.parquet as pq

from bench.harness import BenchFailed, Goal, Row, Run, Scenario
from bench.spark.sides import Sides, Wanted, lacking
from bench.spark.stores import SIZE_IDS, SIZE_NAMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CEILING: Final = Goal("ratio at least", 0.8)
THROUGH_A_BROKER: Final = Goal("ratio at least", 10)
READY, PARQUET, BROKER = "ready", "parquet", "broker"
_TITLES: Final = {READY: "ready-made batches", PARQUET: "Parquet", BROKER: "a broker"}


class Question(Scenario):
    """One question to our source, and the same beside it to the three others: a row of the table for each of them."""

    title: ClassVar[str]
    wanted: ClassVar[Wanted]
    goals: ClassVar[dict[str, Goal]] = {READY: CEILING, BROKER: THROUGH_A_BROKER}

    def __init__(self, sides: Sides, body: int) -> None:
        self._sides = sides
        self._name = f"{self.group}-{SIZE_IDS[body]}"
        self.rows = tuple(
            Row(
                f"{self._name}-{side}",
                f"{self.title}, {SIZE_NAMES[body]}; beside {text}",
                "messages/s",
                self.goals.get(side),
                body_bytes=body,
            )
            for side, text in _TITLES.items()
        )

    @abstractmethod
    def answer(self, frame: DataFrame) -> int:
        """Has Spark read the frame; returns how many rows it has seen."""

    def not_yet(self) -> str:
        return lacking()

    def ours(self) -> Run:
        self._sides.store  # noqa: B018 - made here, not in the measured time
        rate = self._rate(self._sides.ours, self._sides.rows)
        return self._run(dict.fromkeys(_TITLES, rate))

    def java(self, peer: Any) -> Run:
        """The others, one after the other."""
        sides = self._sides
        sides.served, sides.parquet_files, sides.ready(self.wanted)  # the same
        rates = {
            READY: self._rate(sides.ready, sides.rows),
            PARQUET: self._rate(sides.parquet, sides.rows),
            BROKER: self._rate(sides.broker, sides.pulled_rows),
        }
        return self._run(rates)

    def _rate(self, frame: Callable[[Wanted], DataFrame], expected: int) -> float:
        """Rows a second, from `load` to the answer. Raises BenchFailed if rows are missing, or too many."""
        started = time.perf_counter()
        seen = self.answer(frame(self.wanted))
        took = time.perf_counter() - started
        seen = self.check(seen)
        if seen != expected:
            raise BenchFailed(f"{frame.__name__} gave {seen} rows and has {expected}")
        return seen / took

    def check(self, seen: int) -> int:
        """How many rows were seen, where that takes a look at what was written; not in the measured time."""
        return seen

    def _run(self, rates: dict[str, float]) -> Run:
        return Run({f"{self._name}-{side}": rate for side, rate in rates.items()}, {"rows": self._sides.rows})


class Count(Question):
    """With the one column that somebody asks for who has read that Spark prunes none."""

    group = "count"
    title = "count, columns=topic"
    wanted = Wanted(("topic",))

    def answer(self, frame: DataFrame) -> int:
        return frame.count()


class CountAll(Count):
    """As somebody asks who has not."""

    group = "count-all"
    title = "count, all columns"
    wanted = Wanted()


class CountLog(Count):
    """Straight from the log, file by file."""

    group = "count-log"
    title = "count, columns=topic, order=log"
    wanted = Wanted(("topic",), order="log")


class ByTopic(Question):
    """Messages and bytes of each topic."""

    group = "by-topic"
    title = "aggregate by topic, columns=topic,store_size"
    wanted = Wanted(("topic", "store_size"))

    def answer(self, frame: DataFrame) -> int:
        found = frame.groupBy("topic").agg({"*": "count", "store_size": "sum"}).collect()
        return sum(row["count(1)"] for row in found)


class ByTopicLog(ByTopic):
    """Straight from the log, file by file."""

    group = "by-topic-log"
    title = "aggregate by topic, columns=topic,store_size, order=log"
    wanted = Wanted(("topic", "store_size"), order="log")


class ToParquet(Question):
    """Every column of every row, written."""

    group = "to-parquet"
    title = "all columns to Parquet"
    wanted = Wanted()
    goals: ClassVar[dict[str, Goal]] = {READY: CEILING}

    def answer(self, frame: DataFrame) -> int:
        frame.write.mode("overwrite").parquet(str(self._sides.output()))
        return 0

    def check(self, seen: int) -> int:
        return sum(pq.read_metadata(file).num_rows for file in self._sides.output().glob("*.parquet"))


QUESTIONS: Final = (Count, CountLog, CountAll, ByTopic, ByTopicLog, ToParquet)
