"""The source in SQL."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from support.spark import sentence
from support.stores import StoreHome


def test_a_temporary_view_can_be_queried_in_sql(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    home.put_numbered(store, 4)
    store.close()
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages USING rocketmq "
        f"OPTIONS (path '{home.path}', subscribe 'T', minPartitions 2)"
    )
    found = spark.sql("SELECT cast(body AS string) b FROM messages WHERE queue_offset > 1 ORDER BY b").collect()
    assert [row.b for row in found] == ["0002", "0003"]


def test_a_table_that_lost_its_options_says_what_to_do(spark: SparkSession, home: StoreHome) -> None:
    with pytest.raises(Exception) as error:
        spark.read.format("rocketmq").option("subscribe", "T").load().count()
    assert sentence(error).startswith("neither path nor namesrv is given; a table created with CREATE TABLE loses")


def test_a_table_is_read_with_options_in_the_query(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    home.put_numbered(store, 4)
    store.close()
    spark.sql("CREATE TABLE described (body binary, queue_offset bigint) USING rocketmq")
    try:
        query = f"SELECT queue_offset FROM described WITH (path='{home.path}', subscribe='T') WHERE queue_offset > 1"
        assert sorted(row.queue_offset for row in spark.sql(query).collect()) == [2, 3]
    finally:
        spark.sql("DROP TABLE described")


def test_java_of_a_light_session_has_room_for_the_code_of_many_queries(spark: SparkSession) -> None:
    java = spark._jvm
    assert java is not None
    beans = java.java.lang.management.ManagementFactory
    options = beans.getPlatformMXBean(java.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean"))
    assert int(options.getVMOption("TieredStopAtLevel").getValue()) == 1
    assert int(options.getVMOption("ReservedCodeCacheSize").getValue()) >= 200 << 20
