"""The sentence that a person reads when the disk refuses something."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from penstock.errors import StoreFailed


def disk_refused(what: str, path: Path, size: int, error: OSError) -> StoreFailed:
    """The sentence for an operation that the disk refused."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFailed(
            f"{what}: no space left on the disk for {size} bytes; free some, it goes on by itself", path=path
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreFailed(f"{what}: the folder is read-only for this user; check its owner and mount", path=path)
    return StoreFailed(f"{what}: {os.strerror(error.errno or 0)}; check the disk and who may write there", path=path)
