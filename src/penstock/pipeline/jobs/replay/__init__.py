"""Replays messages into topics: from an export, a store, a cluster, files, a dead-letter queue, or any DataFrame.

A replay has a name. A checkpoint under this name lets it resume at the end of its last run. A store gets each
micro-batch completely and exactly once. A cluster gets each micro-batch at least once: if a run is killed within a
micro-batch, the next run sends that batch again, with the same unique keys.
"""

from penstock.pipeline.jobs.replay.batch import Mapping, Target
from penstock.pipeline.jobs.replay.job import (
    Replayed,
    ReplaySource,
    check_replay,
    dead_letters,
    from_export,
    from_files,
    from_input,
    replay,
)

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
