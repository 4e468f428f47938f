"""The audit of `verify` without Spark: pieces go to a worker as bytes, and answers come back as bytes, in no order."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from pathlib import Path

from sound_store import ITEMS, SLOTS

from penstock.pipeline.jobs.audit_tasks import Answer, Numbered, answers
from penstock.pipeline.jobs.verify import Stores, Verified, audit_stores
from penstock.pipeline.jobs.where import Where
from penstock.store.audit import AuditReport, audit
from penstock.store.folder import StoreFolder

PAIRS = (f"maxHashSlotNum={SLOTS}", f"maxIndexNum={ITEMS}")
"""What must be said of a `SoundStore`: an index file does not say its geometry."""


Tasks = Sequence[Sequence[Numbered]]
Answers = list[tuple[int, Answer]]


def in_process(tasks: Tasks) -> Answers:
    """What Spark does with tasks."""
    told: Answers = []
    for sent in [pickle.dumps(task) for task in tasks]:
        told += pickle.loads(answers(pickle.loads(sent)))
    random.Random(len(told)).shuffle(told)
    return told


def stores_at(*paths: Path | str) -> Stores:
    return Stores.find(Where(stores=tuple(str(path) for path in paths), settings=PAIRS))


def verified(*paths: Path | str, piece_size: int = 0) -> dict[str, Verified]:
    return audit_stores(stores_at(*paths), in_process, piece_size=piece_size)


def audit_here(path: Path | str) -> AuditReport:
    """What `penstock store verify` has to say."""
    folder = StoreFolder.find(Path(path), None, PAIRS)
    return audit(folder.layout, folder.settings, folder.files)
