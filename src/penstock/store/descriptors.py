"""The number of files that this process may have open."""

from __future__ import annotations

import contextlib
import resource


def allow_many_files() -> None:
    """Each file takes two descriptors; the usual soft limit of 1,024 is too low for many queues."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
