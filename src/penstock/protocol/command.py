"""A remoting command: one request or one reply, independent of how its header is serialised.

A `Command` is a plain value, used by one thread at a time. A received command decodes its arguments lazily. `ext`
decodes them on first access. `read` converts the header's bytes directly to a typed header, which halves the cost of a
request. Both raise BadRequest if the arguments are malformed, so that the request can still be answered. `repr` shows
neither the body nor the arguments' values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from penstock.protocol import fields
from penstock.protocol.fields import Fields
from penstock.protocol.json_header import decode_ext
from penstock.protocol.versions import CURRENT, Language

RESPONSE: Final = 1
ONE_WAY: Final = 2

F = TypeVar("F", bound=Fields)
_KEPT_BYTES: Final = 1024
"""What a request takes that is kept, besides its arguments and body: its task and futures."""


class _Slots(msgspec.Struct, gc=False, eq=False):
    code: int
    ext: dict[str, str] | msgspec.Raw = {}
    body: bytes | memoryview = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: Language = Language.PYTHON
    version: int = CURRENT
    binary: bool = False


_EXT = _Slots.__dict__["ext"]  # the slot behind the property `ext`


class Command(_Slots, gc=False, eq=False):
    """A remoting command. `binary` selects the binary header; the default is JSON."""

    @property  # type: ignore[misc]  # a property over the field on purpose: it decodes the field lazily
    def ext(self) -> dict[str, str]:
        """The arguments as texts by name. Raises BadRequest if they are malformed."""
        ext: dict[str, str] | msgspec.Raw = _EXT.__get__(self)
        if not isinstance(ext, dict):
            ext = decode_ext(ext)
            _EXT.__set__(self, ext)
        return ext

    @ext.setter
    def ext(self, ext: dict[str, str]) -> None:
        _EXT.__set__(self, ext)

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONE_WAY != 0

    def read(self, kind: type[F]) -> F:
        """Returns the arguments as `kind`. Raises BadRequest, which names the request code and the field."""
        ext = _EXT.__get__(self)
        if isinstance(ext, dict):
            return fields.read(kind, ext, self.code)
        return fields.read_json(kind, ext, self.code)

    def reply(
        self,
        code: int,
        remark: str | None = None,
        ext: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> Command:
        """Returns a reply to this request: with the same opaque and serialisation, and the response bit set."""
        arguments = {} if ext is None else dict(ext)
        return Command(code, arguments, body, self.opaque, RESPONSE, remark, binary=self.binary)

    def stub(self) -> Command:
        """Returns this request without arguments, body and remark: enough to reply to it later."""
        return Command(self.code, {}, b"", self.opaque, self.flag, None, self.language, self.version, self.binary)

    def keep(self) -> int:
        """Prepares a request for being kept while it is answered. Returns the bytes that it takes, about.

        The lazy arguments are a view of the whole header; only the arguments themselves are kept.
        """
        self.remark = None
        ext = _EXT.__get__(self)
        if isinstance(ext, dict):
            size = sum(len(name) + len(value) for name, value in ext.items())
        else:
            _EXT.__set__(self, ext := ext.copy())
            size = memoryview(ext).nbytes
        return _KEPT_BYTES + 2 * size + len(self.body)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return self._content() == other._content()

    def _content(self) -> tuple[object, ...]:
        return (
            self.code,
            self.ext,
            self.body,
            self.opaque,
            self.flag,
            self.remark,
            self.language,
            self.version,
            self.binary,
        )

    def __repr__(self) -> str:
        kind = "reply" if self.is_response else "one-way request" if self.is_oneway else "request"
        return f"<{kind} {int(self.code)} #{self.opaque}, {len(self.body)} bytes>"
