"""Spark's push-down of filters into Python sources: as long as it mixes up the filters of one frame, we do not use it.

The source here does what ours would do. If this test fails, the installed Spark does it right, and ours may use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

datasource = pytest.importorskip("pyspark.sql.datasource")
if not hasattr(datasource, "EqualTo"):
    pytest.skip("this Spark pushes no filters into Python sources", allow_module_level=True)


def toy_source() -> type:
    """A source of the numbers 0 to 9, defined here so that it travels to Spark's processes by value."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition

    class ToyReader(DataSourceReader):
        def __init__(self) -> None:
            self.wanted: int | None = None

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
            for each in filters:
                if isinstance(each, EqualTo):
                    self.wanted = each.value
                yield each

        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(self.wanted)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((number,) for number in range(10) if partition.value in (None, number))

    class ToySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock-toy"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: object) -> DataSourceReader:
            return ToyReader()

    return ToySource


def test_this_spark_mixes_up_the_filters_of_one_frame(spark: SparkSession) -> None:
    spark.dataSource.register(toy_source())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("penstock-toy").load()
        union = frame.where("n = 1").union(frame.where("n = 2"))
        in_union = sorted(row.n for row in union.collect())
        aliased = spark.read.format("penstock-toy").load()
        left, right = aliased.alias("a").where("a.n = 1"), aliased.alias("b").where("b.n = 2")
        in_join = [tuple(row) for row in left.crossJoin(right).select(col("a.n"), col("b.n")).collect()]
        later = spark.read.format("penstock-toy").load()
        alone = later.where("n = 3").count(), later.count()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    right_answers = (in_union == [1, 2], in_join == [(1, 2)], alone == (1, 10))
    assert not all(right_answers), "this Spark pushes filters down correctly: pipeline.source may use them"
