"""Exit statuses of the command."""

from __future__ import annotations

from typing import Final

OK: Final = 0
PROBLEM: Final = 1  # problems found (verify, repair, diff)
NOT_RUN: Final = 2  # bad input, or a store that cannot be opened
INTERRUPTED: Final = 130  # Ctrl-C
READER_GONE: Final = 141  # the reader of stdout went away, as `head` does
