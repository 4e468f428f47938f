"""Schemas of DataFrames that are written, from short texts: Spark's own parser needs a session."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

_TYPES = {
    "binary": BinaryType(),
    "string": StringType(),
    "varchar(20)": VarcharType(20),
    "tinyint": ByteType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "array<string>": ArrayType(StringType()),
    "array<int>": ArrayType(IntegerType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def columns_of(text: str) -> StructType:
    """`body binary, queue_id int`"""
    pairs = (column.split(" ") for column in text.split(", "))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])
