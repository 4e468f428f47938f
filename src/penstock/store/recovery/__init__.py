"""Recovery at open: finds the log's end, then makes the queues and the index match the log.

The log is the source of truth. Bytes after its last valid record are a torn tail: recovery quarantines them, then
zeroes them. Damage in the middle truncates nothing: recovery lists it in `penstock/damaged.json`, reports it at each
start, and skips it. Recovery replaces a missing file between two others with zeros. It keeps queue
units and index items up to the last valid one, and rebuilds what follows from the log.

Recovery first inspects, and changes nothing. It raises BadStore if the files are not usable, and StoreFailed if the
quarantine lacks room. Then it applies its changes. Each step is idempotent: after a kill at any moment, the next start
reaches the same result.

1. `LogRecovery`    lists damage, replaces missing files, zeroes the torn tail
2. `QueueRecovery`  truncates each queue after its last valid unit
3. `IndexRecovery`  truncates the index after its last valid item
4. `Redispatch`     builds missing units and index items from the log
5. `Recovery`       syncs everything; only then does the checkpoint advance

After a clean exit, recovery walks the last three log files; after a crash, all files that the checkpoint does not
cover.
"""

from penstock.store.recovery.recovery import Recovery, StartParts
from penstock.store.recovery.report import Progress, RecoveryReport

__all__ = ["Progress", "Recovery", "RecoveryReport", "StartParts"]
