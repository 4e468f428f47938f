"""What deletion has done, and how the disk is, as values for whoever shows them."""

from __future__ import annotations

import msgspec


class DiskFigures(msgspec.Struct, frozen=True):
    """One partition that the store lies on."""

    path: str
    used_bytes: int
    free_bytes: int
    used_ratio: float
    """Rounded up to whole percents."""
    level: str
    """ROOMY, OLD_FILES_GO, YOUNG_FILES_GO or FULL."""


class RetentionFigures(msgspec.Struct, frozen=True):
    """The state of deletion at one moment."""

    disk: list[DiskFigures]
    """The log's partition first, then that of the queues if it is another."""
    next_expiry_ms: int
    """When the oldest file of the log will be old enough to go, -1 if the last one is all there is."""
    log_files_deleted: int
    derived_files_deleted: int
    """Queue, extension and index files that followed the log."""
    bytes_freed: int
    problem: str
    """Why the last pass could not do all it should; empty if it could."""
