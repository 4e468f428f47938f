"""What every start works with, as one value."""

from __future__ import annotations

import msgspec

from penstock.format.checkpoint import Checkpoint
from penstock.store.engine import Engine
from penstock.store.quarantine import MayExceed, Quarantine
from penstock.store.records import Records
from penstock.store.recovery.report import Tell
from penstock.store.store_lock import StoreLock


class StartParts(msgspec.Struct, frozen=True, kw_only=True):
    """The store that is started, and who is asked and told meanwhile."""

    engine: Engine
    records: Records
    checkpoint: Checkpoint
    may_exceed: MayExceed
    """Asked before more than quarantineMaxBytes is kept aside."""
    tell: Tell
    job_lock: StoreLock | None
    """That of external dispatch, from who holds it already; the start releases it if it was needed."""

    def quarantine(self) -> Quarantine:
        """Where this start keeps things aside."""
        engine = self.engine
        most = engine.settings.quarantine_max_bytes
        return Quarantine(engine.io, engine.layout.quarantine, engine.clock, max_bytes=most, may_exceed=self.may_exceed)
