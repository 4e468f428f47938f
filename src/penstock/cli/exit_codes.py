"""What the command's exit status says."""

from __future__ import annotations

from typing import Final

OK: Final = 0
PROBLEM: Final = 1  # the store has a problem, and finding that is what the verb is for
NOT_RUN: Final = 2  # bad input, or a store that cannot be opened as it is
INTERRUPTED: Final = 130  # Ctrl-C
READER_GONE: Final = 141  # whoever read our output has closed it, as `head` does
