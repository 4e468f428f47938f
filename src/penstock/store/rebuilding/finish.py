"""From ranges that are built to queues and index that are in place.

Queues and index files are finished at once, by whoever runs the ranges. Then comes what needs the order of the log or
the old queues, in this process: queues whose offsets go back are dispatched as a start would, and places at the old
queues' ends whose messages are lost stay kept. Nothing old is touched before `put_in_place`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.format.queue_unit import UNIT_SIZE
from penstock.store.audit.cover import QueueName
from penstock.store.file_queue import FileQueue
from penstock.store.files import Files
from penstock.store.overlay_files import OverlayFiles
from penstock.store.rebuilding.index_build import IndexPart, build_index_file, cut_keys
from penstock.store.rebuilding.plan import Plan
from penstock.store.rebuilding.queue_finish import QueueGroup, finish_queues, grouped
from penstock.store.rebuilding.source import Source
from penstock.store.rebuilding.sums import Sums
from penstock.store.repair.derived import Derived, Renewed, what_is_left
from penstock.store.repair.headers import Sequences, restarts
from penstock.store.repair.old_queues import OldQueues
from penstock.store.repair.report import Progress, Rebuilt
from penstock.store.repair.staging import Staging, StagingPlan
from penstock.store.repair.survey import survey
from penstock.store.swap import remove_all

_ASKED_FOR: Final = "it was asked for"
_GROUPS: Final = 32


class Finish:
    """One rebuild, whose ranges are all built."""

    def __init__(
        self,
        source: Source,
        plan: Plan,
        sums: Sums,
        run: Callable[[Callable[[Any], bytes], Sequence[Any]], list[bytes]],
        progress: Progress,
    ) -> None:
        self._source = source
        self._io = source.files
        self._plan = plan
        self._sums = sums
        self._run = run
        self._progress = progress
        self._whole = sums.whole_queues(plan.task.queue_file_size) if sums.fits else []
        self._units = {(queue.topic, queue.queue_id): queue.units for queue in self._whole}
        self.in_log_order: set[QueueName] = sums.in_log_order if sums.fits else set(sums.queues) | sums.in_log_order
        """Queues that are built in the order of the log."""
        self._index_in_order = plan.task.index is not None and not sums.fits
        self._parts: list[IndexPart] = []
        if plan.task.index is not None and sums.fits:
            self._parts = cut_keys(sums.keys, plan.task.geometry, source.clock())
        self._items = sum(part.items for part in self._parts)

    def rehearse(self) -> list[Rebuilt]:
        """What would be put in place."""
        if self.in_log_order or self._index_in_order:
            self._build_in_log_order()
        queues, index = self._renewed()
        found = [Rebuilt(f"{name[0]} queue {name[1]}", *queues[name]) for name in sorted(queues)]
        return found if index is None else [*found, Rebuilt("index", *index)]

    def build(self) -> str:
        """Where something that was built is not as it should be; empty if all is well. Raises BadStore, StoreFailed."""
        remove_all(self._io, self._plan.index)
        work = functools.partial(_finish, self._plan, self._io)
        told = self._run(work, [*self._parts, *grouped(self._whole, _GROUPS)])
        bad = next((each.decode() for each in told if each), "")
        if bad:
            return bad
        for topic, queue_id in self._left_in_staging():
            remove_all(self._io, self._plan.queues / topic / str(queue_id))
        if self.in_log_order or self._index_in_order or self._sums.damage or self._sums.placeholders:
            self._build_in_log_order()
        return ""

    def _left_in_staging(self) -> list[QueueName]:
        """Folders of queues that no range alone can build."""
        files, size = self._io, self._plan.task.queue_file_size
        there = OldQueues(files, self._source.target, size, folder=self._plan.queues).names()
        return [name for name in there if name not in self._units]

    def _build_in_log_order(self) -> None:
        task, source = self._plan.task, self._source

        def builds(topic: str, queue_id: int) -> bool:
            return (topic, queue_id) in self.in_log_order

        plan = StagingPlan(
            log_end=self._sums.end,
            selects=builds if self._io.read_only else task.selects,
            builds=builds,
            restarts=self._restarts(),
            damage=self._sums.damage,
            with_index=self._index_in_order,
            source=source.layout,
        )
        with Staging(self._io, source.target, source.settings, source.clock, plan) as staging:
            if self.in_log_order or self._index_in_order:
                staging.build(self._progress)
            if not self._io.read_only:
                staging.load(self._units, self._sums.placeholders)
            staging.keep_ends()
            staging.sync()
            for queue in staging.queues:
                first = max(queue.files.min_offset, 0) // UNIT_SIZE
                self._units[queue.topic, queue.queue_id] = queue.max_offset - first
            if staging.index is not None:
                self._items = sum(file.count - 1 for file in staging.index.files)

    def _restarts(self) -> dict[QueueName, int]:
        """Where queues begin anew; only asked if there are some whose offsets go back."""
        if not self.in_log_order:
            return {}
        task, sequences = self._plan.task, Sequences()
        log = FileQueue(OverlayFiles(), self._source.layout.commit_log, task.log.file_size)
        log.load()
        try:
            survey(log.files, topics=sequences.topics, watch=sequences.watch, progress=self._progress)
        finally:
            log.close()
        return restarts(sequences, OldQueues(self._io, self._source.layout, task.queue_file_size))

    def put_in_place(self) -> list[Rebuilt]:
        """Swaps everything. Raises BadStore or StoreFailed; then the old files are in force, or a start ends it."""
        queues, index = self._renewed()
        source, place = self._source, self._source.place
        is_sound = place is not None and place.closed_cleanly and not self._sums.damage and not self.in_log_order
        if place is not None:
            place.mark_unclean()
        derived = Derived(self._io, source.target, source.settings, source.clock, source.quarantine)
        rebuilt = derived.put_in_place(queues, index)
        if place is not None and is_sound:  # every record was checked just now: a start need not do it again
            place.mark_clean()
        return rebuilt

    def _renewed(self) -> tuple[dict[QueueName, Renewed], Renewed | None]:
        task, source = self._plan.task, self._source
        queues = {name: Renewed(_ASKED_FOR, units) for name, units in self._units.items()}
        if source.place is not None:
            old = OldQueues(self._io, source.layout, task.queue_file_size, task.selects)
            left = what_is_left(old, queues, self._sums.begin)
            queues |= {name: Renewed(reason, 0) for name, reason in left.items()}
        return queues, None if task.index is None else Renewed(_ASKED_FOR, self._items)


def _finish(plan: Plan, files: Files, piece: IndexPart | QueueGroup) -> bytes:
    if isinstance(piece, IndexPart):
        return build_index_file(plan, files, piece).encode()
    return finish_queues(plan, files, piece).encode()
