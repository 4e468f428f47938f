"""Messages back into topics: from an export, a store, a cluster, files, a dead-letter queue, or any frame.

A replay goes on where its last run ended, by a checkpoint under its name. Into a store each micro-batch is stored whole
and once. Into a cluster it is sent at least once: after a run that was killed within a micro-batch, the next one sends
that batch again, with the same unique keys.
"""

from penstock.pipeline.jobs.replay.batch import Mapping, Target
from penstock.pipeline.jobs.replay.job import Replayed, check_replay, replay
from penstock.pipeline.jobs.replay.source import ReplaySource, dead_letters, from_export, from_files, from_input

__all__ = [
    "Mapping",
    "ReplaySource",
    "Replayed",
    "Target",
    "check_replay",
    "dead_letters",
    "from_export",
    "from_files",
    "from_input",
    "replay",
]
