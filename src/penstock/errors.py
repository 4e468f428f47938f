"""The exception tree. Every error says in one sentence what is wrong, where, and what to do.

    PenstockError
    ├── BadSettings     a setting that is unknown, malformed or does not fit the others
    ├── BadMessage      a message that may not be stored: topic, properties, size
    ├── CorruptData     bytes that are not what they must be; carries path, offset, expected and found
    ├── BadStore        a store that cannot be opened as it is: wrong file size, foreign file, missing folder
    ├── StoreInUse      another process, or this one, owns the store
    ├── StoreFailed     the disk refused: full, read-only, or a failed sync
    ├── BadFrame        bytes from the network that are no remoting frame; the connection is of no further use
    ├── BadRequest      a frame whose arguments or body are not what its code asks for
    ├── Unreachable     a peer that cannot be connected to, or whose connection is gone
    ├── NoAnswer        a peer that did not answer in time
    ├── Refused         a peer that answered with an error; carries its code and remark
    ├── NoRoute         a topic that no name server knows, or a broker without an address
    ├── DataLost        messages that were to be read are not there any more
    └── MissingPackage  an optional package that is needed here is not installed

Damage met while scanning is not an exception: it is reported as data by whatever scans.


The sentence that a person reads when the disk refuses something.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class PenstockError(Exception):
    """Root of all errors; `path`, `offset`, `expected` and `found` are set where they are known."""

    def __init__(
        self,
        message: str,
        *,
        path: str | Path | None = None,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        super().__init__(message)
        self.path = None if path is None else str(path)
        self.offset = offset
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.offset is None else f" (at offset {self.offset})"
        detail = ""
        if self.expected is not None:
            detail = f"; expected {self.expected}, found {self.found}"
        return f"{where}{self.args[0]}{detail}{at}"


class BadSettings(PenstockError):
    """A setting that is unknown, malformed or does not fit the others."""


class BadMessage(PenstockError):
    """A message that may not be stored."""


class CorruptData(PenstockError):
    """Bytes that are not what they must be."""


class BadStore(PenstockError):
    """A store that cannot be opened as it is."""


class StoreInUse(PenstockError):
    """The store is owned by another process, or already open in this one."""


class StoreFailed(PenstockError):
    """The disk refused: full, read-only, or a failed sync."""


class BadFrame(PenstockError):
    """Bytes from the network that are no remoting frame: whoever reads them closes the connection."""


class BadRequest(PenstockError):
    """A frame whose arguments or body are not what its code asks for: whoever reads it answers with an error."""


class Unreachable(PenstockError):
    """A peer that cannot be connected to, or whose connection is gone."""


class NoAnswer(PenstockError):
    """A peer that did not answer in time: what was asked for may have happened, or not."""


class Refused(PenstockError):
    """A peer that answered with an error: `code` is the protocol's, `remark` its own words."""

    def __init__(self, message: str, *, code: int, remark: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.remark = remark


class NoRoute(PenstockError):
    """A topic that no name server knows, or a broker without an address."""


class DataLost(PenstockError):
    """Messages that were to be read are not there any more."""


class MissingPackage(PenstockError):
    """An optional package that is needed here is not installed."""


def disk_refused(what: str, path: Path, size: int, error: OSError) -> StoreFailed:
    """The sentence for an operation that the disk refused."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFailed(
            f"{what}: no space left on the disk for {size} bytes; free some, it goes on by itself", path=path
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreFailed(f"{what}: the folder is read-only for this user; check its owner and mount", path=path)
    return StoreFailed(f"{what}: {os.strerror(error.errno or 0)}; check the disk and who may write there", path=path)
