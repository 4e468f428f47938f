"""The JSON header: what nearly every client sends.

Real clients do not agree on the types of `extFields`: Java sends strings, ali-ons numbers and booleans, the C++
client a mixture. Here they all become the text that Java would have sent; a value written as a number keeps the
very digits the client wrote, because a signature is computed over them. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from penstock.errors import BadFrame, BadRequest
from penstock.format.constants import Int32
from penstock.protocol.versions import Language

_NOTHING = msgspec.Raw(b"{}")


class JsonHeader(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    """A header as it came; `ext` is still JSON text. Keys that are not known are ignored."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    language: str | int | None = None
    version: Int32 = 0
    remark: str | None = None
    ext: msgspec.Raw = _NOTHING


class _Written(msgspec.Struct, gc=False, omit_defaults=True, rename={"ext": "extFields"}):
    """A header as it goes out, in the order in which Java writes it."""

    code: int
    ext: Mapping[str, str]
    flag: int
    language: str
    opaque: int
    version: int
    remark: str | None = None


_header = msgspec.json.Decoder(JsonHeader, strict=False)
_strings = msgspec.json.Decoder(dict[str, str] | None)
_values = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_string = msgspec.json.Decoder(str)
_encoder = msgspec.json.Encoder()

BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises on input that is not what it must be."""


def decode_header(data: bytes) -> JsonHeader:
    """The header of a frame. Raises BadFrame."""
    try:
        return _header.decode(data)
    except BAD_JSON as error:
        with suppress(*BAD_JSON, ValueError):
            return _header.decode(_mended(data))
        raise BadFrame(f"a frame's JSON header cannot be read: {error}") from None


def _mended(data: bytes) -> bytes:
    """The same JSON with a question mark for each half of a character, which JavaScript clients write as `\\ud83d`."""
    return expressible(json.dumps(json.loads(data), ensure_ascii=False, allow_nan=False)).encode()


def decode_ext(raw: msgspec.Raw | bytes) -> dict[str, str]:
    """`extFields` as Java would hold them: text by name, nulls left out. Raises BadRequest."""
    try:
        return _strings.decode(raw) or {}
    except BAD_JSON:
        pass
    try:
        return {
            name: text
            for name, value in (_values.decode(raw) or {}).items()
            if (text := _text(bytes(value))) is not None
        }
    except BAD_JSON as error:
        raise BadRequest(f"a request's extFields cannot be read: {error}") from None


def _text(value: bytes) -> str | None:
    if value.startswith(b'"'):
        return _string.decode(value)
    text = value.decode()
    return None if text == "null" else text


def encode_header(
    code: int, language: Language, version: int, opaque: int, flag: int, remark: str | None, ext: Mapping[str, str]
) -> bytes:
    """The header as JSON. Text that UTF-8 cannot express gets question marks, as in Java."""
    try:
        return _encoder.encode(_Written(code, ext, flag, language.name, opaque, version, remark))
    except UnicodeEncodeError:
        ext = {expressible(name): expressible(value) for name, value in ext.items()}
        remark = None if remark is None else expressible(remark)
        return _encoder.encode(_Written(code, ext, flag, language.name, opaque, version, remark))


def expressible(text: str) -> str:
    """`text` with a question mark for each lone surrogate."""
    return text.encode("utf-8", "replace").decode()
