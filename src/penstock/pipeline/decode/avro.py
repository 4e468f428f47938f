"""Decodes Avro bodies. A body is one datum without a header, in the writer's schema. Pure. Needs fastavro.

A union of null and one other type becomes that other type. Any other union becomes JSON text. A recursive type cannot
be a column, so it is refused.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import BadSettings, MissingPackage
from penstock.pipeline.decode.decoder import ArrowKind, Decoder, Undecodable


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


_PLAIN: Final = {
    "null": ArrowKind(pa.string()),
    "boolean": ArrowKind(pa.bool_()),
    "int": ArrowKind(pa.int32()),
    "long": ArrowKind(pa.int64()),
    "float": ArrowKind(pa.float32()),
    "double": ArrowKind(pa.float64()),
    "bytes": ArrowKind(pa.binary()),
    "string": ArrowKind(pa.string()),
    "fixed": ArrowKind(pa.binary()),
    "enum": ArrowKind(pa.string()),
}
_MOMENT: Final = ArrowKind(pa.timestamp("us", "UTC"))
_LOCAL_MOMENT: Final = ArrowKind(pa.timestamp("us"))
_LOGICAL: Final = {
    "date": ArrowKind(pa.date32()),
    "timestamp-millis": _MOMENT,
    "timestamp-micros": _MOMENT,
    "local-timestamp-millis": _LOCAL_MOMENT,
    "local-timestamp-micros": _LOCAL_MOMENT,
    "time-millis": ArrowKind(pa.string(), str),
    "time-micros": ArrowKind(pa.string(), str),
    "uuid": ArrowKind(pa.string(), str),
}


def avro_decoder(schema: bytes) -> Decoder:
    """Returns the decoder for an Avro schema. Raises BadSettings if it is invalid, MissingPackage without fastavro."""
    try:
        import fastavro
        from fastavro.schema import SchemaParseException, UnknownType
    except ModuleNotFoundError:
        raise MissingPackage("Avro needs the package fastavro: pip install 'penstock[avro]'") from None
    try:
        parsed = fastavro.parse_schema(msgspec.json.decode(schema))
    except (msgspec.DecodeError, SchemaParseException, UnknownType, TypeError, KeyError, ValueError) as error:
        raise BadSettings(f"--schema must be an Avro schema, and is not ({error})") from None
    kind = _Kinds().of(parsed)

    def value(body: bytes) -> Any:
        source = io.BytesIO(body)
        try:
            datum = fastavro.schemaless_reader(source, parsed, None)
        except Exception as error:  # the bytes are foreign: any error is possible
            raise Undecodable(f"it is not an Avro datum of this schema ({type(error).__name__}: {error})") from None
        if source.tell() != len(body):
            raise Undecodable(f"{len(body) - source.tell()} bytes follow the Avro datum")
        return kind.convert(datum)

    return Decoder(kind.type, value)


class _Kinds:
    """Converts Avro types to Arrow types. Remembers named types, and the records that it is converting right now.

    A record inside itself is recursive.
    """

    def __init__(self) -> None:
        self._named: dict[str, Mapping[str, Any]] = {}
        self._open: set[str] = set()

    def of(self, schema: Any) -> ArrowKind:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return _PLAIN[schema] if schema in _PLAIN else self.of(self._named[schema])
        kind = schema["type"]
        logical = schema.get("logicalType")
        if "name" in schema:
            self._named[schema["name"]] = schema
        if logical == "decimal":
            return ArrowKind(pa.decimal128(min(schema["precision"], 38), schema.get("scale", 0)))
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "array":
            item = self.of(schema["items"])
            return ArrowKind(pa.list_(item.type), lambda found: [_convert(item, each) for each in found])
        if kind == "map":
            item = self.of(schema["values"])
            return ArrowKind(
                pa.map_(pa.string(), item.type),
                lambda found: [(name, _convert(item, each)) for name, each in found.items()],
            )
        return self.of(kind)

    def _union(self, schema: list[Any]) -> ArrowKind:
        others = [each for each in schema if each != "null"]
        if len(others) == 1:
            return self.of(others[0])
        for each in others:
            self.of(each)  # registers its names for later use
        return ArrowKind(pa.string(), _json_text)

    def _record(self, schema: Mapping[str, Any]) -> ArrowKind:
        name = schema["name"]
        if name in self._open:
            raise BadSettings(
                f"--schema: the Avro type '{name}' contains itself, and such a type has no columns; leave --decode out"
            )
        self._open.add(name)
        fields = {field["name"]: self.of(field["type"]) for field in schema["fields"]}
        self._open.remove(name)
        if not fields:
            raise BadSettings(
                f"--schema: the Avro record '{name}' has no fields, and such a type has no columns; leave --decode out"
            )
        return ArrowKind(
            pa.struct([pa.field(each, kind.type) for each, kind in fields.items()]),
            lambda found: {each: _convert(kind, found[each]) for each, kind in fields.items()},
        )


def _convert(kind: ArrowKind, value: Any) -> Any:
    return None if value is None else kind.convert(value)
