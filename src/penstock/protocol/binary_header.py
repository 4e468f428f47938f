"""The binary header, used by Java clients with `ROCKETMQ_SERIALIZE_TYPE=ROCKETMQ`.

OFFSET  SIZE   DESCRIPTION
0       2      code, a signed short: codes above 32767 cannot be expressed
2       1      language
3       2      version
5       4      opaque
9       4      flag
13      4 + n  remark: length (4), text
…       4 + n  extFields: length (4), then for each field name length (2), name, value length (4), value

A text of length 0 means absent, so an empty value cannot be sent. All numbers are big-endian. Pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from penstock.errors import BadFrame, BadRequest
from penstock.protocol.versions import Language, language_of

_FIXED: Final = struct.Struct(">hBhiii")  # up to and including the length of the remark
_LENGTH: Final = struct.Struct(">i")
_MAX_NAME: Final = 2**15 - 1

BinaryHeader = tuple[int, Language, int, int, int, str | None, dict[str, str]]
"""The values code, language, version, opaque, flag, remark, ext."""


def decode_header(data: bytes) -> BinaryHeader:
    """Decodes a frame's header. Raises BadFrame."""
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(data)
        ext_at = _FIXED.size + remark_length
        if remark_length < 0 or ext_at > len(data):
            raise BadFrame("the remark of a binary header is longer than the header", found=remark_length)
        remark = data[_FIXED.size : ext_at].decode() or None
        (ext_length,) = _LENGTH.unpack_from(data, ext_at)
        ext_at += _LENGTH.size
        if ext_length != len(data) - ext_at:
            raise BadFrame(
                "the fields of a binary header do not fill it", expected=len(data) - ext_at, found=ext_length
            )
        return code, language_of(language), version, opaque, flag, remark, _decode_ext(data, ext_at)
    except (struct.error, IndexError):
        raise BadFrame(f"a binary header of {len(data)} bytes ends in the middle of a field") from None
    except UnicodeDecodeError as error:
        raise BadFrame(f"a binary header holds text that is not UTF-8: {error.reason}") from None


def _decode_ext(data: bytes, at: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    end = len(data)
    length_of = _LENGTH.unpack_from
    while at < end:
        name_at = at + 2
        name_end = name_at + (data[at] << 8 | data[at + 1])
        (length,) = length_of(data, name_end)
        value_at = name_end + 4
        at = value_at + length
        if length < 0 or at > end:
            raise BadFrame("a field of a binary header is longer than the header", found=length)
        if length and name_end > name_at:
            fields[data[name_at:name_end].decode()] = data[value_at:at].decode()
    return fields


def encode_header(
    code: int, language: Language, version: int, opaque: int, flag: int, remark: str | None, ext: Mapping[str, str]
) -> bytes:
    """Returns the header's bytes. Raises BadRequest if the binary form cannot express a value."""
    note = b"" if remark is None else remark.encode("utf-8", "replace")
    pieces = []
    for name, value in ext.items():
        if name and value:
            key, text = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
            if len(key) > _MAX_NAME:
                raise BadRequest("a field's name is too long for the binary header", expected=_MAX_NAME, found=len(key))
            pieces += [len(key).to_bytes(2, "big"), key, len(text).to_bytes(4, "big"), text]
    fields = b"".join(pieces)
    try:
        head = _FIXED.pack(code, language, version, opaque, flag, len(note))
    except struct.error:
        raise BadRequest(f"code {code} or version {version} does not fit the binary header; send it as JSON") from None
    return b"".join((head, note, _LENGTH.pack(len(fields)), fields))
