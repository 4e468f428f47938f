"""What a start does before anything is served: find the log's end, and bring queues and index in line with it.

The log decides. Behind its last valid record nothing is believed: torn bytes are kept aside and zeroed. Damage in its
middle cuts nothing off; it is remembered (`penstock/damaged.json`), reported at each start, and passed over. Zeros
stand in for a log file that is missing in between. Of queues and index what is sound is kept, the rest is kept aside
and built again from the log.

A start first looks, and changes nothing: what it cannot deal with, and what there is no room to keep aside, ends it
with everything as it was. Then it acts, each step so that a process killed at any moment leaves what the next start
brings to the same end:

1. `log_part`     damage is noted, stand-ins are made, the torn tail is kept aside and zeroed
2. `queue_recovery`   queues are cut where they cannot be believed, and what is cut is kept aside
3. `index_recovery`   the same for the index
4. `dispatching`  what is missing in queues and index is built from the log
5. everything is synced, and only then the checkpoint says so

After a clean exit the last three log files are walked; after a crash, those that the checkpoint does not vouch for.
"""

from penstock.store.recovery.recovery import Recovery, StartParts
from penstock.store.recovery.report import Progress, RecoveryReport

__all__ = ["Progress", "Recovery", "RecoveryReport", "StartParts"]
