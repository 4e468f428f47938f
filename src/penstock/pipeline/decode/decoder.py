"""How to decode bodies, and the columns of values from columns of bodies. Pure. Needs pyarrow.

A `Decode` travels to the workers, with the content of the schema, not its path; each worker builds its `Decoder` from
it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.errors import BadSettings


def _unchanged(value: Any) -> Any:
    """The identity."""
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
    """Raised for a body that cannot be decoded; the text says why."""


class Decoder(NamedTuple):
    """The type of the values, and a function from a body to its value, which may raise Undecodable."""

    type: pa.DataType
    value: Callable[[bytes], Any]

    def column(self, bodies: pa.Array, skip: pa.Array | None = None) -> tuple[pa.Array, pa.Array]:
        """The values of a column of bodies, and the reasons why some could not be decoded.

        Both are null for a null body, and for rows where `skip` is true.
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
        """The values as a column. A value that does not fit the type becomes null, with a reason."""
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
    """How to decode bodies. Pickled."""

    kind: str
    schema: bytes = b""
    """Avro: the schema's JSON. Protobuf: a descriptor set. JSON: the columns of the value, in DDL."""
    message: str = ""
    """Protobuf: the full name of the message."""

    @classmethod
    def of(cls, kind: str, schema: str | Path | None = None, message: str = "") -> Decode:
        """Reads the schema's file. Raises BadSettings."""
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
    """Raises BadSettings for an invalid schema, MissingPackage without its package."""
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
    """The body's text, if it is JSON."""
    text = _text(body)
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Undecodable(f"it is not JSON ({error})") from None
    return text
