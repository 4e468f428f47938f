"""The arguments of requests and replies, `extFields`, as typed structs.

A request or reply header is a `Fields` subclass. Its attributes are in snake_case; on the wire they have the protocol's
camelCase names. `Int32` and `Int64` stand for Java's int and long. `None` means that an optional field is absent.
`read` accepts the forms that real clients send: numbers as text, booleans as true, TRUE, 1 or "1". `write` produces
text that every client reads. Pure functions, thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from penstock.errors import BadRequest
from penstock.format.constants import Int32, Int64
from penstock.format.msgspec_warm_up import prepared
from penstock.protocol.codes import RequestCode
from penstock.protocol.json_header import BAD_JSON, decode_ext

Codes = tuple[RequestCode, ...]


class Fields(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """Arguments of a request or reply. `codes` are the codes of the requests to which they belong."""

    codes: ClassVar[Codes] = ()


class Request(Fields, kw_only=True):
    """The arguments of a request."""


class Reply(Fields, kw_only=True):
    """The arguments of a reply."""


F = TypeVar("F", bound=Fields)


def read(kind: type[F], ext: Mapping[str, str], code: int | None = None) -> F:
    """Returns the arguments of a request or reply as `kind`.

    Raises BadRequest, which names the field and, if given, the request code.
    """
    try:
        header: F = msgspec.convert(ext, prepared(kind), strict=False)
        return header
    except msgspec.ValidationError:
        return _read_leniently(kind, ext, code)


def read_json(kind: type[F], raw: msgspec.Raw, code: int | None = None) -> F:
    """Like `read`, but directly from JSON text, in one step."""
    try:
        header: F = _decoder(kind).decode(raw)
        return header
    except BAD_JSON:
        return _read_leniently(kind, decode_ext(raw), code)


def write(header: Fields) -> dict[str, str]:
    """Returns the arguments as texts by name. Omits fields that are None."""
    ext = {}
    for attribute, name in _names(type(header)):
        value = getattr(header, attribute)
        if value is None:
            continue
        if value is True:
            ext[name] = "true"
        elif value is False:
            ext[name] = "false"
        else:
            ext[name] = str(value)
    return ext


@cache
def _decoder(kind: type[F]) -> msgspec.json.Decoder[F]:
    return msgspec.json.Decoder(prepared(kind), strict=False)


@cache
def _names(kind: type[Fields]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))


def _read_leniently(kind: type[F], ext: Mapping[str, str], code: int | None) -> F:
    """Reads the arguments field by field. Raises BadRequest.

    Like Java's parser, it accepts a plus sign and leading zeros. An empty number means absent.
    """
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        text = ext.get(field.encode_name)
        if text is not None and _is_number(field.type):
            text = _digits(text.strip())
        if text is None:
            if field.required:
                raise BadRequest(f"{_request(kind, code)} needs the field {_name(field)}, which is missing")
            continue
        try:
            values[field.name] = msgspec.convert(text, field.type, strict=False)
        except msgspec.ValidationError:
            raise BadRequest(
                f"{_request(kind, code)} has a wrong field {_name(field)}",
                expected=_description(field.type),
                found=repr(text[:64]),
            ) from None
    return kind(**values)


def _name(field: msgspec.structs.FieldInfo) -> str:
    """Returns a field's name for an error; for a one-letter name of a V2 code, also its meaning."""
    meaning = f" ({field.name})" if len(field.encode_name) == 1 else ""
    return f"'{field.encode_name}'{meaning}"


def _is_number(kind: Any) -> bool:
    """Whether a field's type is a number or a boolean, not text."""
    return kind is not str and kind != (str | None)


def _digits(text: str) -> str | None:
    """Returns a number's text without plus sign and leading zeros; None for an empty text; other text unchanged."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text.removeprefix("+"))
    if not (digits.isascii() and digits.isdecimal()):
        return text or None
    return sign + (digits.lstrip("0") or "0")


def _description(kind: Any) -> str:
    names = {Int32: "a whole number of 32 bits", Int64: "a whole number of 64 bits", bool: "true or false"}
    for known, name in names.items():
        if kind in (known, known | None):
            return name
    return "text"


def _request(kind: type[Fields], code: int | None) -> str:
    if code is None:
        return " or ".join(f"{request.name} ({request.value})" for request in kind.codes) or kind.__name__
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
