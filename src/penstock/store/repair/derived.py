"""Rebuilds queues and index from the log beside the old ones, and swaps those that differ.

Everything is built, synced and read back before the first old file moves. The swap is journaled, so a start finds
either the old or the new files whenever the process is killed. New files that do not differ from the old ones are
deleted. Callers must own the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.errors import BadStore, StoreFailed
from penstock.format.queue_unit import UNIT_SIZE
from penstock.format.topics import is_readable_topic
from penstock.store.atomic_files import Move, clear_staging, swap
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.copy_on_write_files import OverlayFiles
from penstock.store.damage import DamagedRange, Quarantine
from penstock.store.file_io import Files
from penstock.store.index import Index
from penstock.store.layout import Layout
from penstock.store.repair.compare import OldQueues, QueueName, difference
from penstock.store.repair.report import Progress, Rebuilt, within
from penstock.store.repair.staging import Staging, StagingPlan
from penstock.store.settings import Settings

ChooseReplacements = Callable[[Staging], tuple[dict[QueueName, str], str]]
"""Returns the queues to swap in, each with a reason, and the reason to swap in the index.

An empty reason keeps the old index.
"""


class Replacement(NamedTuple):
    """A queue or an index to swap in: the reason, and its number of units or items."""

    reason: str
    units: int


class DerivedRebuilder:
    """Rebuilds the queues and the index of one store."""

    def __init__(
        self, files: Files, layout: Layout, settings: Settings, clock: Callable[[], int], quarantine: Quarantine
    ) -> None:
        self._io = files
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._quarantine = quarantine

    def rebuild(
        self,
        log_end: int,
        choose: ChooseReplacements,
        *,
        damage: Sequence[DamagedRange] = (),
        restarts: Mapping[QueueName, int],
        selects: Callable[[str, int], bool] | None = None,
        with_index: bool = True,
        progress: Progress,
    ) -> list[Rebuilt]:
        """Builds the queues that `selects` selects, and swaps in those that `choose` returns.

        `log_end`: physical offset where the log ends. `damage`: ranges to skip. `restarts`: by queue, the physical
        offset where it restarts at queue offset 0. Raises BadStore or StoreFailed; then the old files are in place, or
        the next start finishes the swap.
        """
        clear_staging(self._io, self._layout)
        plan = StagingPlan(log_end=log_end, selects=selects, restarts=restarts, damage=damage, with_index=with_index)
        with Staging(self._io, self._layout, self._settings, self._clock, plan) as staging:
            staging.build(progress)
            staging.keep_lost_tails()
            staging.sync()
            queues, index_reason = choose(staging)
            built = {name: Replacement(reason, _units(staging, name)) for name, reason in queues.items()}
            index = None
            if index_reason:
                items = 0 if staging.index is None else sum(file.count - 1 for file in staging.index.files)
                index = Replacement(index_reason, items)
            for topic, queue_id in queues:
                self._read_back(staging.queues.find(topic, queue_id))
            if index_reason:
                self._read_back_index(staging.index)
        return self.swap_in(built, index)

    def swap_in(self, queues: Mapping[QueueName, Replacement], index: Replacement | None) -> list[Rebuilt]:
        """Replaces old folders with folders from the staging folder. Those must be complete and synced.

        A queue that is not in the staging folder is only removed. Raises BadStore or StoreFailed, as `rebuild` does.
        """
        if queues or index is not None:
            self._refuse_other_disks()
        new = [(f"{topic} queue {queue_id}", queues[topic, queue_id]) for topic, queue_id in sorted(queues)]
        moves = [self._move(Path("consumequeue", topic, str(queue_id))) for topic, queue_id in sorted(queues)]
        if index is not None:
            new.append(("index", index))
            moves.append(self._move(Path("index")))
        swap(self._io, self._layout, moves)
        for topic in {topic for topic, _ in queues}:
            self._io.remove_folder(self._layout.consume_queue / topic)
        clear_staging(self._io, self._layout)
        return [
            Rebuilt(what, each.reason, each.units, move.kept if self._io.exists(self._layout.root / move.kept) else "")
            for (what, each), move in zip(new, moves, strict=True)
        ]

    def _refuse_other_disks(self) -> None:
        """Raises BadStore if a folder is on another disk: the swap renames folders, and no start could finish it."""
        for folder in (self._layout.consume_queue, self._layout.index):
            with contextlib.suppress(FileNotFoundError):
                if self._io.partition(folder) != self._io.partition(self._layout.root):
                    raise BadStore(
                        "the folder is on another disk than the store, so nothing in it can be swapped; move it "
                        "elsewhere and start the store, which builds it again",
                        path=folder,
                    )

    def _move(self, folder: Path) -> Move:
        root = self._layout.root
        kept = self._quarantine.target_for(root / folder)
        return Move(str(folder), self._io.is_folder(self._layout.staging / folder), within(root, kept))

    # -- reading back ----------------------------------------------------------------------------------------

    def _read_back(self, built: ConsumeQueue | None) -> None:
        """Raises StoreFailed if the queue on disk differs from the built one. Runs before any file is replaced."""
        if built is None:
            return
        reading = self._io if self._io.read_only else OverlayFiles()
        again = ConsumeQueue(reading, built.files.folder, built.topic, built.queue_id, built.files.file_size)
        with contextlib.closing(again):
            again.load()
            if (again.max_offset, again.max_physical_offset) != (built.max_offset, built.max_physical_offset):
                raise self._not_as_built(built.files.folder)

    def _read_back_index(self, built: Index | None) -> None:
        if built is None:
            return
        again = Index(self._io if self._io.read_only else OverlayFiles(), built.folder, built.geometry, self._clock)
        with contextlib.closing(again):
            again.load([file.path.name for file in built.files])
            if [file.header for file in again.files] != [file.header for file in built.files]:
                raise self._not_as_built(built.folder)

    def _not_as_built(self, folder: Path) -> StoreFailed:
        return StoreFailed(
            "the new files read back differently than written; nothing was replaced, check the disk", path=folder
        )


def _units(staging: Staging, name: QueueName) -> int:
    built = staging.queues.find(*name)
    return 0 if built is None else built.max_offset - max(built.files.min_offset, 0) // UNIT_SIZE


def differing_queues(staging: Staging, log_begin: int, damage: Sequence[DamagedRange]) -> dict[QueueName, str]:
    """Returns the queues in the store that differ from the built ones, each with a short reason."""
    wrong = obsolete_queues(staging.old, {(queue.topic, queue.queue_id) for queue in staging.queues}, log_begin)
    for queue in staging.queues:
        with staging.old.open(queue.topic, queue.queue_id) as old:
            reason = difference(old, queue, log_begin, damage)
        if reason:
            wrong[queue.topic, queue.queue_id] = reason
    return wrong


def obsolete_queues(old_queues: OldQueues, built: Collection[QueueName], log_begin: int) -> dict[QueueName, str]:
    """Returns the queues in the store that were not built and should be removed, each with a short reason.

    Leaves out queues of topics that dispatch would not create.
    """
    wrong: dict[QueueName, str] = {}
    for name in old_queues.names():
        if name in built or not is_readable_topic(name[0]):
            continue
        with old_queues.open(*name) as old:
            reason = difference(old, None, log_begin)
            if old is None:
                reason = "its files could not be read, and the log has no records for it"
        if reason:
            wrong[name] = reason
    return wrong
