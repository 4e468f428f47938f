"""The arguments of a code, `extFields`, as typed structs.

A request or reply header is a `Fields` subclass: attributes in snake_case, the protocol's camelCase names outside,
`Int32` and `Int64` where Java has int and long, `None` where a field may be missing. `read` takes what real clients
send (numbers as text, booleans as true, TRUE, 1 or "1"); `write` gives the text that every client reads.
Pure functions over values; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from penstock.errors import BadRequest
from penstock.format.constants import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.json_header import BAD_JSON, decode_ext

Codes = tuple[RequestCode, ...]


class Fields(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """Arguments. `codes` are the requests that carry them, or that are answered with them."""

    codes: ClassVar[Codes] = ()


class Request(Fields, kw_only=True):
    """The arguments of a request."""


class Reply(Fields, kw_only=True):
    """The arguments of a reply."""


F = TypeVar("F", bound=Fields)


def read(kind: type[F], ext: Mapping[str, str], code: int | None = None) -> F:
    """The arguments of a request or reply. Raises BadRequest, naming the field; `code` is named too if given."""
    try:
        found: F = msgspec.convert(ext, kind, strict=False)
        return found
    except msgspec.ValidationError:
        return _read_with_care(kind, ext, code)


def read_json(kind: type[F], raw: msgspec.Raw, code: int | None = None) -> F:
    """The same straight from JSON text, in one step."""
    try:
        found: F = _decoder(kind).decode(raw)
        return found
    except BAD_JSON:
        return _read_with_care(kind, decode_ext(raw), code)


def write(header: Fields) -> dict[str, str]:
    """The arguments as text by name; what is None is left out."""
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
    return msgspec.json.Decoder(kind, strict=False)


@cache
def _names(kind: type[Fields]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))


def _read_with_care(kind: type[F], ext: Mapping[str, str], code: int | None) -> F:
    """Field by field: Java's parser also takes a plus sign and leading zeros, and an empty number is no number."""
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
    """The field's name; for the letters of the V2 codes what they mean, too."""
    meaning = f" ({field.name})" if len(field.encode_name) == 1 else ""
    return f"'{field.encode_name}'{meaning}"


def _is_number(kind: Any) -> bool:
    """Whether a field is a number or a boolean: anything but text."""
    return kind is not str and kind != (str | None)


def _digits(text: str) -> str | None:
    """A number without plus sign and leading zeros; None for no text at all, other text as it is."""
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
