"""What every start works with, as one value."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.format.checkpoint import Checkpoint
from penstock.store.commit_log import CommitLog
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.quarantine import MayExceed, Quarantine
from penstock.store.records import Records
from penstock.store.recovery.log_part import LogPart
from penstock.store.recovery.report import Tell
from penstock.store.settings import Settings
from penstock.store.store_lock import StoreLock


class StartParts(msgspec.Struct, frozen=True, kw_only=True):
    """The store that is started, and who is asked and told meanwhile."""

    files: Files
    layout: Layout
    settings: Settings
    log: CommitLog
    records: Records
    checkpoint: Checkpoint
    clock: Callable[[], int]
    may_exceed: MayExceed
    """Asked before more than quarantineMaxBytes is kept aside."""
    tell: Tell
    job_lock: StoreLock | None
    """That of external dispatch, from who holds it already; the start releases it if it was needed."""

    def quarantine(self) -> Quarantine:
        """Where this start keeps things aside."""
        most = self.settings.quarantine_max_bytes
        return Quarantine(self.files, self.layout.quarantine, self.clock, max_bytes=most, may_exceed=self.may_exceed)

    def log_part(self, *, live: bool, begun: int | None = None) -> LogPart:
        check_crc = self.settings.check_crc_on_recover
        return LogPart(self.files, self.layout, self.log, self.records, check_crc=check_crc, live=live, begun=begun)
