"""The column `value` of an export: bodies decoded on Spark's workers, and why those that are missing have none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.errors import BadSettings
from penstock.pipeline.decode import Decode, make_decoder
from penstock.pipeline.jobs.streaming import CORRUPT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

REASON: Final = "_reason"
_MISFIT: Final = "_misfit"


def with_value(frame: DataFrame, decode: Decode | None, *, nested: bool = False) -> DataFrame:
    """The rows with `_reason`, and with `value` if bodies are decoded.

    JSON without a schema is text, or nested where the target can hold that. Raises BadSettings.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    if decode is None:
        return frame.withColumn(REASON, f.lit(None).cast("string"))
    kind = from_arrow_type(make_decoder(decode).type)
    fields = [*frame.schema.fields, StructField("value", kind), StructField(REASON, StringType())]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = make_decoder(decode)
        for batch in batches:
            values, reasons = decoder.column(batch.column("body"), batch.column(CORRUPT).is_valid())
            yield batch.append_column("value", values).append_column(REASON, reasons)

    rows = frame.mapInArrow(run, StructType(fields))
    if decode.kind != "json":
        return rows
    if not decode.schema:
        return rows.withColumn("value", f.parse_json("value")) if nested else rows
    columns = StructType([*json_columns(decode).fields, StructField(_MISFIT, StringType())])
    value = f.from_json("value", columns, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MISFIT})
    misfit = f.when(f.col(f"value.{_MISFIT}").isNotNull(), "it is JSON of another shape than the schema's")
    return (
        rows.withColumn("value", value)
        .withColumn(REASON, f.coalesce(f.col(REASON), misfit))
        .withColumn("value", f.col("value").dropFields(_MISFIT))
    )


def json_columns(decode: Decode) -> StructType:
    """The columns of JSON values: `id bigint, name string`, or what Spark's own schemas look like as JSON."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    text = decode.schema.decode("utf-8", "replace").strip()
    try:
        if text.startswith("{"):
            return StructType.fromJson(json.loads(text))
        made = StructType.fromDDL(text)
        if not isinstance(made, StructType):
            raise ValueError(f"{text} is one type, and names are needed")
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise BadSettings(f"--schema names no columns, as in `id bigint, name string` ({first})") from None
    return made
