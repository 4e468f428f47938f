"""What is known of a log file that is asked whether it may go."""

from __future__ import annotations

from penstock.store.files import Files
from penstock.store.mapped_file import MappedFile
from penstock.store.retention.policy import LogFile


def facts_of(files: Files, file: MappedFile, *, safe_offset: int) -> LogFile:
    """`safe_offset` is up to where the log is on disk and dispatched. A file that is lost is as old as can be."""
    try:
        modified = files.modified_ms(file.path)
    except FileNotFoundError:  # somebody deleted it by hand: nothing is left to keep
        modified = 0
    return LogFile(file.from_offset, file.size, modified, file.from_offset + file.size <= safe_offset)
