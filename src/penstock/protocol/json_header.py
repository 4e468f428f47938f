"""The JSON header, which nearly every client sends.

Clients disagree on the types of the values in `extFields`: Java sends strings, ali-ons numbers and booleans, the C++
client a mix. Every value becomes the text that Java would have sent. A number keeps its digits as sent, because the ACL
signature covers them. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from penstock.errors import BadFrame, BadRequest
from penstock.format.constants import Int32
from penstock.format.msgspec_warm_up import prepared
from penstock.protocol.versions import Language

_NOTHING = msgspec.Raw(b"{}")


class JsonHeader(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    """A received header. `ext` is still JSON text. Unknown keys are ignored."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    language: str | int | None = None
    version: Int32 = 0
    remark: str | None = None
    ext: msgspec.Raw = _NOTHING


class _OutgoingHeader(msgspec.Struct, gc=False, omit_defaults=True, rename={"ext": "extFields"}):
    """A header to send. The fields are in Java's order."""

    code: int
    ext: Mapping[str, str]
    flag: int
    language: str
    opaque: int
    version: int
    remark: str | None = None


_header = msgspec.json.Decoder(prepared(JsonHeader), strict=False)
_strings = msgspec.json.Decoder(dict[str, str] | None)
_values = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_string = msgspec.json.Decoder(str)
_encoder = msgspec.json.Encoder()

BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises on malformed JSON or a wrong type."""


def decode_header(data: bytes) -> JsonHeader:
    """Decodes a frame's header. Raises BadFrame."""
    try:
        return _header.decode(data)
    except BAD_JSON as error:
        with suppress(*BAD_JSON, ValueError):
            return _header.decode(_without_surrogates(data))
        raise BadFrame(f"a frame's JSON header cannot be read: {error}") from None


def _without_surrogates(data: bytes) -> bytes:
    """Returns the JSON with `?` in place of each lone surrogate. JavaScript clients write one as `\\ud83d`."""
    return replace_surrogates(json.dumps(json.loads(data), ensure_ascii=False, allow_nan=False)).encode()


def decode_ext(raw: msgspec.Raw | bytes) -> dict[str, str]:
    """Returns `extFields` as Java holds them: texts by name, without nulls. Raises BadRequest."""
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
    """Returns the header as JSON. Lone surrogates become `?`, as in Java."""
    try:
        return _encoder.encode(_OutgoingHeader(code, ext, flag, language.name, opaque, version, remark))
    except UnicodeEncodeError:
        ext = {replace_surrogates(name): replace_surrogates(value) for name, value in ext.items()}
        remark = None if remark is None else replace_surrogates(remark)
        return _encoder.encode(_OutgoingHeader(code, ext, flag, language.name, opaque, version, remark))


def replace_surrogates(text: str) -> str:
    """Returns `text` with `?` in place of each lone surrogate."""
    return text.encode("utf-8", "replace").decode()
