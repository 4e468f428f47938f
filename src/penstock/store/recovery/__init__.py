"""Recovery at open: finds the log's end, then makes the queues and the index match the log.

The log is the source of truth. Bytes after its last valid record are a torn tail: they are quarantined, then zeroed.
Damage in the middle truncates nothing: recovery notes it in `penstock/damaged.json`, reports it at each start, and
skips it. A missing file between two others is replaced by zeros. Valid queue units and index items stay; the rest is
quarantined and rebuilt from the log.

Recovery first inspects and changes nothing. It raises if it cannot handle what it sees, or if the quarantine lacks
room. Then it applies its changes. Each step is idempotent: after a kill at any moment, the next start reaches the same
result.

1. `LogRecovery`    notes damage, replaces missing files, truncates the torn tail
2. `QueueRecovery`  truncates queues after their last trusted unit
3. `IndexRecovery`  does the same for the index
4. `Redispatch`     builds from the log what queues and index lack
5. sync everything; only then does the checkpoint advance

After a clean exit, recovery walks the last three log files; after a crash, all that the checkpoint does not cover.
"""

from penstock.store.recovery.recovery import Recovery, StartParts
from penstock.store.recovery.report import Progress, RecoveryReport

__all__ = ["Progress", "Recovery", "RecoveryReport", "StartParts"]
