"""Compares two stores, or a store and a cluster: messages that differ, have moved, or exist on one side only.

- by `place`: the message at each topic, queue and queue offset. A message without an equal there is then matched by its
  unique key, or by its content: it may have moved.
- by `key`: wherever the messages are, for stores whose offsets differ, such as after a replay.
- by `bytes`: the logs byte by byte, as a master's and its slave's must be equal.

One worker reads a range of both sides and compares columns; only counts travel, and rows without an equal. That one
side begins later (retention) is reported and is not a difference. That one ends sooner is reported, and is a difference
unless the caller says otherwise.
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
