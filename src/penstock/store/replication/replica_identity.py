"""The file `penstock/replica.json`: a random name of this copy of the log, made when it is first asked for.

It tells a replica from another one that got its broker id, and an emptied folder from the replica that was there
before. A copy of a whole store has the name of the original: remove the file from the copy.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

import msgspec

from penstock.store.files.atomic_files import read_checksummed, write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout

_NAME: Final = re.compile(r"[0-9a-f]{32}")


class _Document(msgspec.Struct):
    replica: str


def replica_identity(files: Files, layout: Layout) -> str:
    """Returns the name of this replica, 32 hexadecimal digits. Makes one if there is none. Raises StoreFailed."""
    known = read_checksummed(files, layout.replica, _Document)
    if known is not None and _NAME.fullmatch(known.replica):
        return known.replica
    made = secrets.token_hex(16)
    write_checksummed(files, layout.replica, _Document(made))
    return made
