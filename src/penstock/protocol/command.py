"""One request or one reply, whichever way it travels and however its header is written.

A `Command` is a plain value, made and read by one thread at a time. One that came from the network reads its arguments
late: `ext` is decoded when it is first asked for, and `read` goes from the header's bytes to a typed header in one
step, which halves the cost of a request. So a request whose arguments are no arguments at all is found out there, with
a BadRequest that can be answered. Printed, a command shows neither its body nor the values of its arguments.
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


_EXT = _Slots.__dict__["ext"]  # the slot behind the property


class Command(_Slots, gc=False, eq=False):
    """A remoting command. `binary` says how the header is, or was, serialised."""

    @property  # type: ignore[misc]  # a property over the field on purpose: it decodes what the field holds
    def ext(self) -> dict[str, str]:
        """The arguments, text by name. Raises BadRequest if the client sent something else."""
        found: dict[str, str] | msgspec.Raw = _EXT.__get__(self)
        if not isinstance(found, dict):
            found = decode_ext(found)
            _EXT.__set__(self, found)
        return found

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
        """The arguments as `kind`. Raises BadRequest, naming the code and the field."""
        found = _EXT.__get__(self)
        if isinstance(found, dict):
            return fields.read(kind, found, self.code)
        return fields.read_json(kind, found, self.code)

    def reply(
        self,
        code: int,
        remark: str | None = None,
        ext: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> Command:
        """The answer to this request: same id, same serialisation, response bit set."""
        arguments = {} if ext is None else dict(ext)
        return Command(code, arguments, body, self.opaque, RESPONSE, remark, binary=self.binary)

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
