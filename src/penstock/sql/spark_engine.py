"""`SparkSqlSession`: runs queries over the views of stores with Spark SQL, on a session that exists. Needs pyspark.

The views and their columns are those of `duckdb_engine`, and a name in double quotes is an identifier as there. A query
that both dialects understand has the same result. Workers read the stores, so they need the stores' folders. Spark does
not tell a source which columns a query needs: the text of the query does. A view that is not named in it is not made.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import BadQuery, BadSettings
from penstock.pipeline.arrow_scan import BODY_TEXT, ScanOptions, find_topic
from penstock.pipeline.errors import from_spark_errors
from penstock.pipeline.offset_ranges import ReadTask
from penstock.pipeline.scan_plan import plan_batch
from penstock.pipeline.session import map_in_workers
from penstock.pipeline.source_rows import ROW_SCHEMA, RowShape
from penstock.sql.views import BODY_JSON, GROUPS, QUEUES, Views, replace_key_views, told_apart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
}
_DERIVED: Final = {
    BODY_TEXT: "try_validate_utf8(CAST(body AS STRING))",
    BODY_JSON: f"CASE WHEN try_parse_json({BODY_TEXT}) IS NOT NULL THEN {BODY_TEXT} END",
}
_COUNT: Final = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_NO_TABLE: Final = re.compile(r"TABLE_OR_VIEW_NOT_FOUND\].*?[`\"]([^`\"]+)[`\"]")


class SparkSqlSession:
    """Queries over the stores of `options`, as they are when a query starts."""

    def __init__(self, spark: SparkSession, options: ScanOptions) -> None:
        """Raises BadStore or BadSettings if the stores cannot be read."""
        self._spark = spark
        self._views = Views(options)
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)

    def run(self, text: str) -> Iterator[pa.RecordBatchReader]:
        """Runs a query and yields its rows, once. Raises BadQuery, BadStore and what Spark's workers raise."""
        query, key_views = replace_key_views(text.strip().rstrip(";"), quote)
        columns = _columns_in(query)
        for view in key_views:
            self._messages(self._views.scan_of_key(view), columns).createOrReplaceTempView(quote(view.name))
        named = (
            name for name in self._views.names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query, re.IGNORECASE)
        )
        for name in told_apart(named, query):
            if name in (QUEUES, GROUPS):
                frame = self._spark.createDataFrame(self._views.table_of(name))
            else:
                frame = self._messages(self._views.scan_of(name), columns)
            frame.createOrReplaceTempView(quote(name))
        with from_spark_errors():
            rows = self._analysed(query).toArrow()
        yield rows.to_reader()

    def _messages(self, scanned: ScanOptions, columns: Collection[str]) -> DataFrame:
        """Returns the messages of a view, with some of the columns."""
        from pyspark.sql.functions import expr

        from penstock.pipeline.source import spark_schema
        from penstock.pipeline.spark_versions import arrow_schema

        options = replace(scanned.source_options(), mode="DROPMALFORMED")
        names = [name for name in ROW_SCHEMA.names if name in columns] or ["queue_id"]
        schema = spark_schema(names, options)
        shape, arrow = RowShape.of(options, names), arrow_schema(schema)

        def read(task: ReadTask) -> Iterator[pa.RecordBatch]:
            return shape.batches(task, arrow)

        frame = map_in_workers(self._spark, plan_batch(options), read, schema)
        for name, expression in _DERIVED.items():
            if name in columns:
                frame = frame.withColumn(name, expr(expression))
        return frame

    def _analysed(self, query: str) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        try:
            return self._spark.sql(query)
        except (AnalysisException, ParseException) as error:
            message = str(error).strip()
            missing = _NO_TABLE.search(message)
            if missing is not None:
                try:
                    find_topic(missing[1], self._views.names)
                except BadSettings as unknown:
                    raise BadQuery(str(unknown)) from None
            first = re.sub(r"^\[[A-Z_.]+\]\s*", "", message.split("\n", 1)[0])
            raise BadQuery(re.sub(r"\.?\s*SQLSTATE: \w+", "", first).rstrip(". ")) from None


def _columns_in(query: str) -> set[str]:
    """Returns the columns of messages that a query can refer to: those in its text, and what they are made of."""
    words = {word.lower() for word in re.findall(r"\w+", query)}
    everything = {*ROW_SCHEMA.names, *_DERIVED}
    if "*" in _COUNT.sub("", query) or "|>" in query or "select" not in words or words & {"natural", "table"}:
        return everything
    columns = everything & words
    if BODY_JSON in columns:
        columns.add(BODY_TEXT)
    if BODY_TEXT in columns:
        columns.add("body")
    return columns


def quote(name: str) -> str:
    """Returns a name as a quoted identifier. Spark takes backticks everywhere."""
    return "`" + name.replace("`", "``") + "`"
