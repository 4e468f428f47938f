"""The suite `spark`: the source on a store's files beside the ceiling, beside Parquet, and beside a broker.

    stores      the stores that are read
    ready       a source of ready-made batches, the ceiling
    served      `penstock serve`, for what is read through a broker
    sides       the same rows from the four places, and the Spark session
    questions   what is asked, a row of the table for each question and each of the others

One session on two cores for all of it, warm: each question is first asked once without being counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import Scenario
from bench.java import NoJava
from bench.spark.questions import QUESTIONS
from bench.spark.sides import Session, Sides, lacking
from bench.spark.stores import FULL, QUICK, Sizes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkSuite:
    """See the module. `spark`: a session to use instead of starting one."""

    name = "spark"
    summary = "Spark reads a store: beside ready-made batches, Parquet and a broker."
    beside = "Other side"

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._spark = spark
        self._sides: list[Sides] = []
        self._session: Session | None = None

    def need(self, quick: bool) -> int:
        return _sizes(quick).disk_need

    def scenarios(self, folder: Path, quick: bool) -> list[Scenario]:
        sizes = _sizes(quick)
        self._session = Session(folder / "spark", self._spark)
        found: list[Scenario] = []
        for body in sizes.messages:
            sides = Sides(folder, body, sizes, self._session)
            self._sides.append(sides)
            found += [question(sides, body) for question in QUESTIONS]
        return found

    def class_path(self) -> list[Path]:
        if reason := lacking():
            raise NoJava(reason)
        return []

    @contextmanager
    def peer(self, jars: list[Path], folder: Path, quick: bool) -> Iterator[object]:
        """The other sides are made by the questions that need them."""
        yield self

    def close(self) -> None:
        """Ends the brokers, then the session if it is ours."""
        for sides in self._sides:
            sides.close()
        self._sides.clear()
        if self._session is not None:
            self._session.stop()


def _sizes(quick: bool) -> Sizes:
    return QUICK if quick else FULL
