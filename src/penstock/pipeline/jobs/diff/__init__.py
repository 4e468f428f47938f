"""Compares two sides, each a store or a cluster. Finds messages that differ, have moved, or exist on one side only.

There are three ways to compare:

- by `place`: compares the messages at the same topic, queue and queue offset. A message without an equal there may have
  moved, so it is then matched by its unique key or content.
- by `key`: compares messages wherever they are. This is for stores whose offsets differ, such as after a replay.
- by `bytes`: compares two logs byte by byte. The logs of a master and its slave must be equal.

Each worker reads a range of both sides and compares columns. It returns only counts, and the rows without an equal. If
one side begins later (by retention), the report says so, but this is no difference. If one side ends sooner, this is a
difference, unless the caller sets `up_to_common_end`.
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
