"""Do two stores, or a store and a cluster, hold the same messages? What is only here, only there, and different.

Three ways to compare:

- by `place`: the message of a topic, queue and queue offset here with that of the same place there. What has no equal
  at its place is then looked for by its unique key, or by what it holds: it may have moved.
- by `key`: wherever the messages are, for stores whose offsets do not match, such as after a replay.
- by `bytes`: the logs themselves, byte by byte, as those of a master and its slave must be.

Both sides are read by the same worker, piece by piece, and compared there as columns; only counts travel, and rows of
what has no equal. That one side begins later (retention) is told and is no difference; that one ends sooner is told,
and is one unless the caller says otherwise.
"""

from penstock.pipeline.jobs.diff.log_bytes import LogDiff, diff_bytes, diff_bytes_here
from penstock.pipeline.jobs.diff.messages import diff, diff_frame, diff_here
from penstock.pipeline.jobs.diff.report import Diff, Difference, MessagePosition, QueueDiff
from penstock.pipeline.jobs.diff.sides import Sides

__all__ = [
    "Diff",
    "Difference",
    "LogDiff",
    "MessagePosition",
    "QueueDiff",
    "Sides",
    "diff",
    "diff_bytes",
    "diff_bytes_here",
    "diff_frame",
    "diff_here",
]
