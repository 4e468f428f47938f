"""The settings for decoding bodies (`Decode`), and the decoder itself (`Decoder`). Pure. Needs pyarrow.

Spark pickles a `Decode` to the workers; it has the content of the schema's file, not its path. Each worker makes its
`Decoder` from it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.errors import BadSettings


def _unchanged(value: Any) -> Any:
    """Returns the value unchanged."""
    return value


class ArrowKind(NamedTuple):
    """An Arrow type, and the conversion of a decoder's values to it."""

    type: pa.DataType
    convert: Callable[[Any], Any] = _unchanged


KINDS: Final = ("text", "json", "avro", "protobuf")
_MISFIT_ERRORS: Final = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    TypeError,
    ValueError,
)


class Undecodable(Exception):
    """A body cannot be decoded. The text says why."""


class Decoder(NamedTuple):
    """The Arrow type of the values, and a function that decodes one body or raises Undecodable."""

    type: pa.DataType
    value: Callable[[bytes], Any]

    def column(self, bodies: pa.Array, skip: pa.Array | None = None) -> tuple[pa.Array, pa.Array]:
        """Returns a column of the bodies' values, and a column of reasons for bodies that cannot be decoded.

        Value and reason are both null if the body is null or `skip` is true.
        """
        values: list[Any] = []
        reasons: list[str | None] = []
        for number, body in enumerate(bodies.to_pylist()):
            value = reason = None
            if body is not None and not (skip is not None and skip[number].as_py()):
                try:
                    value = self.value(body)
                except Undecodable as why:
                    reason = str(why)
            values.append(value)
            reasons.append(reason)
        return self._to_column(values, reasons), pa.array(reasons, pa.string())

    def _to_column(self, values: list[Any], reasons: list[str | None]) -> pa.Array:
        """Returns the values as a column. A value that does not fit the type becomes null; adds its reason."""
        try:
            return pa.array(values, self.type)
        except _MISFIT_ERRORS:
            for number, value in enumerate(values):
                try:
                    pa.array([value], self.type)
                except _MISFIT_ERRORS as why:
                    values[number] = None
                    reasons[number] = f"a value does not fit its column: {why}"
            return pa.array(values, self.type)


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for decoding bodies. Spark pickles them."""

    kind: str
    schema: bytes = b""
    """For Avro, the schema's JSON. For protobuf, a descriptor set. For JSON, the columns of the value in DDL."""
    message: str = ""
    """For protobuf, the full name of the message."""

    @classmethod
    def of(cls, kind: str, schema: str | Path | None = None, message: str = "") -> Decode:
        """Returns the settings, with the content of the file `schema`. Raises BadSettings or MissingPackage."""
        if kind not in KINDS:
            raise BadSettings(f"--decode '{kind}': it must be one of {', '.join(KINDS)}")
        if kind in ("avro", "protobuf") and schema is None:
            what = "an Avro schema" if kind == "avro" else "a descriptor set, as protoc --descriptor_set_out writes it"
            raise BadSettings(f"--decode {kind} needs --schema FILE, {what}")
        if kind == "text" and schema is not None:
            raise BadSettings("--decode text has no schema; leave --schema out")
        if (kind == "protobuf") != bool(message):
            raise BadSettings("--decode protobuf, and nothing else, needs --message NAME, as in shop.v1.Order")
        try:
            content = b"" if schema is None else Path(schema).read_bytes()
        except OSError as error:
            raise BadSettings(f"--schema {schema} cannot be read: {error.strerror}; check the path") from None
        decode = cls(kind=kind, schema=content, message=message)
        make_decoder(decode)
        return decode


def make_decoder(decode: Decode) -> Decoder:
    """Returns the decoder. Raises BadSettings for an invalid schema, MissingPackage if its package is missing."""
    if decode.kind == "avro":
        from penstock.pipeline.decode.avro import avro_decoder

        return avro_decoder(decode.schema)
    if decode.kind == "protobuf":
        from penstock.pipeline.decode.protobuf import protobuf_decoder

        return protobuf_decoder(decode.schema, decode.message)
    return Decoder(pa.string(), _text if decode.kind == "text" else _json)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"it is not UTF-8 text (byte {error.start})") from None


def _json(body: bytes) -> str:
    """Returns the body's text if it is JSON. Raises Undecodable otherwise."""
    text = _text(body)
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Undecodable(f"it is not JSON ({error})") from None
    return text
