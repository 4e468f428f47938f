"""What every JSON body has in common: how it becomes bytes, and how much it forgives when it is read.

`to_bytes` writes strict JSON, integer keys in quotes, top-level fields that are None left out. `from_bytes` takes
what real clients send: numbers as text, nulls, fields it does not know, fields that have a default and are missing,
bare integer keys and a newline at the end. It raises BadRequest, and nothing else, whatever the bytes are.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from penstock.errors import BadRequest, CorruptData
from penstock.format import loose_json
from penstock.protocol.json_header import BAD_JSON, expressible

NOT_THE_SHAPE = (msgspec.ValidationError, UnicodeDecodeError, RecursionError, ValueError)


class Body(msgspec.Struct, kw_only=True, rename="camel"):
    """A JSON body."""

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Raises BadRequest."""
        try:
            return msgspec.json.decode(data, type=cls, strict=False)
        except BAD_JSON:
            return cls._from_loose(data)

    def to_json(self) -> dict[str, Any]:
        """The fields that are not None, by their JSON names."""
        return {
            name: value
            for attribute, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
            if (value := getattr(self, attribute)) is not None
        }

    @classmethod
    def _from_loose(cls, data: bytes | memoryview) -> Self:
        try:
            return msgspec.convert(cls._adapted(read_document(data, cls.__name__)), cls, strict=False)
        except NOT_THE_SHAPE as error:
            raise BadRequest(f"a body is no {cls.__name__}: {error}") from None

    @classmethod
    def _adapted(cls, document: Any) -> Any:
        """The document as `convert` wants it; a subclass forgives more here."""
        return document


def read_document(data: bytes | memoryview, name: str) -> Any:
    """Strict or loose JSON without its nulls. Raises BadRequest; `name` says what was expected."""
    if not data:
        raise BadRequest(f"a {name} was expected as body, and there is no body")
    try:
        text = bytes(data).decode()
        document = loose_json.loads(text)
        return _cleaned(document) if "null" in text or "\\u" in text else document
    except (CorruptData, *NOT_THE_SHAPE) as error:
        raise BadRequest(f"a body is no {name}: {error}") from None


def _cleaned(value: Any) -> Any:
    """Without nulls, and with a question mark for each half of a character, which no body could carry on."""
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return type(value)(_cleaned(item) for item in value if item is not None)
    return expressible(value) if isinstance(value, str) else value
