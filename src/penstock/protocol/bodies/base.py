"""The base of all JSON bodies: encoding, and lenient parsing.

`to_bytes` writes strict JSON. It quotes integer keys and omits top-level fields that are None. `from_bytes` accepts
what real clients send: numbers as text, nulls, unknown fields, missing fields that have a default, unquoted integer
keys and a trailing newline. It raises only BadRequest, whatever the bytes are.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from penstock.errors import BadRequest, CorruptData
from penstock.format import fastjson
from penstock.format.msgspec_warm_up import prepared
from penstock.protocol.json_header import BAD_JSON, replace_surrogates

SHAPE_ERRORS = (msgspec.ValidationError, UnicodeDecodeError, RecursionError, ValueError)


class Body(msgspec.Struct, kw_only=True, rename="camel"):
    """A JSON body."""

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Parses a body. Raises BadRequest."""
        try:
            return msgspec.json.decode(data, type=prepared(cls), strict=False)
        except BAD_JSON:
            return cls._from_loose(data)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that are not None, by their JSON names."""
        return {
            name: value
            for attribute, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
            if (value := getattr(self, attribute)) is not None
        }

    @classmethod
    def _from_loose(cls, data: bytes | memoryview) -> Self:
        try:
            return msgspec.convert(cls._normalized(read_document(data, cls.__name__)), prepared(cls), strict=False)
        except SHAPE_ERRORS as error:
            raise BadRequest(f"the body is not a valid {cls.__name__}: {error}") from None

    @classmethod
    def _normalized(cls, document: Any) -> Any:
        """Returns the parsed document in the form that `msgspec.convert` accepts. Subclasses may override it."""
        return document


def read_document(data: bytes | memoryview, name: str) -> Any:
    """Parses strict or loose JSON and drops nulls. `name` is the expected body, for the error. Raises BadRequest."""
    if not data:
        raise BadRequest(f"the body is missing; a {name} is required")
    try:
        text = bytes(data).decode()
        document = fastjson.loads(text)
        return _sanitized(document) if "null" in text or "\\u" in text else document
    except (CorruptData, *SHAPE_ERRORS) as error:
        raise BadRequest(f"the body is not a valid {name}: {error}") from None


def _sanitized(value: Any) -> Any:
    """Drops nulls, and replaces lone surrogates by `?`, because UTF-8 cannot encode them."""
    if isinstance(value, dict):
        return {_sanitized(key): _sanitized(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return type(value)(_sanitized(item) for item in value if item is not None)
    return replace_surrogates(value) if isinstance(value, str) else value
