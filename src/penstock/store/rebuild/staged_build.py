"""Builds queues and index from the log under `penstock/staging/`, beside the old ones, and swaps them in.

The one way to rebuild them, for `rebuild` and for `repair`. Ranges of the log are derived independently, by tasks
(`ranges.py`). Their notes are combined, and tasks complete the files (`combine_ranges.py`). Three things need all of
the notes, and are done in this process:

- A queue whose offsets go back (its topic was deleted and created again, or a header is damaged) depends on the order
  of the log. Its ranges are derived once more, in log order.
- From an old queue, the units at its end are kept whose messages lay in damaged or covered bytes. No later record shows
  that these messages existed, and without their units their queue offsets would be assigned a second time.
- If the ranges do not fit together, because the bytes of a message look like a record at their own place, the log is
  cut again, into one range per file.

No old file is touched before `swap_in`, and that is journaled: whenever the process is killed, a start finds either the
old or the new files. A build that was killed before the swap can be resumed with the same log and settings: ranges that
have a note are not derived again.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import BadStore, StoreFailed
from penstock.format.constants import BLANK_HEADER_SIZE, BLANK_MAGIC
from penstock.format.kernels import QueuePart
from penstock.format.queue_unit import NO_RECORD_SIZE, PRE_BLANK, UNIT_SIZE, pack_unit
from penstock.store.audit.queue_coverage import CoveredRun, QueueCover, QueueName
from penstock.store.consume_queue import ConsumeQueue, Placeholders
from penstock.store.files.atomic_files import Move, clear_staging, remove_all, swap
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import path_below
from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.rebuild.combine_ranges import IndexFilePlan, complete, cut_keys, grouped
from penstock.store.rebuild.compare_queues import QueueFolder, obsolete_queues
from penstock.store.rebuild.plan import RebuildPlan, RebuildSource, RebuildTask, TaskRunner, cut_log, read_plan
from penstock.store.rebuild.ranges import (
    GapFill,
    QueuePlan,
    RangeNote,
    RangeTotals,
    build_range,
    combine_notes,
    decode_note,
    derive_range,
    find_restarts,
    read_note,
    store_units,
)
from penstock.store.rebuild.report import Rebuilt, within

_REQUESTED: Final = "requested"
_GROUPS: Final = 32
_FAR: Final = 2**63 - 1


class Replacement(NamedTuple):
    """A queue or an index to swap in: the reason, and its number of units or items."""

    reason: str
    units: int


class StagedBuild:
    """One build. `run` runs the tasks. With `dry_run` nothing is written, and only the numbers are known at the end."""

    def __init__(
        self,
        source: RebuildSource,
        task: RebuildTask,
        run: TaskRunner,
        *,
        dry_run: bool = False,
        range_size: int | None = None,
    ) -> None:
        self._source = source
        self._io = source.files
        self._task = task
        self._run = run
        self._dry_run = dry_run
        self._range_size = range_size
        self.plan = RebuildPlan("", task, [])
        self.totals = RangeTotals(0, 0)
        self.resumed = 0
        """Number of ranges that an earlier build had derived."""
        self.queues: dict[QueueName, int] = {}
        """The built queues, each with its number of units."""
        self.items = 0
        """The number of items in the built index."""

    def build(self) -> None:
        """Builds complete and synced files in the staging folder. Raises BadStore, StoreFailed.

        The old files are in place, whatever happens.
        """
        self.plan = self._resumed_plan() or self._new_plan(self._range_size)
        bad = self._attempt()
        if bad and self.resumed:  # a crash of the host took some of what an earlier build left
            self.plan = self._new_plan(self._range_size)
            bad = self._attempt()
        if not self.totals.fits:
            self.plan = self._new_plan(self._task.log.file_size)
            bad = self._attempt()
        if bad:
            raise StoreFailed(
                "the new files read back differently than written; nothing was replaced, check the disk", path=bad
            )

    # -- planning --------------------------------------------------------------------------------------------

    def _resumed_plan(self) -> RebuildPlan | None:
        """Returns the plan that an earlier build with the same task left, if any.

        Removes staged queue files of a wrong size, which a power failure can leave.
        """
        plan = None if self._dry_run else read_plan(self._io, self._source.output.staging)
        if plan is None or plan.task != self._task:
            return None
        if self._range_size is not None and plan.ranges != cut_log(self._task.log, self._range_size):
            return None
        for path, facts in list(self._io.files_below(plan.queues)):
            if facts.st_size != self._task.queue_file_size:
                self._io.unlink(path)
        return plan

    def _new_plan(self, range_size: int | None) -> RebuildPlan:
        """Returns a new plan, with an empty staging folder."""
        plan = RebuildPlan(secrets.token_hex(8), self._task, cut_log(self._task.log, range_size))
        if not self._dry_run:
            clear_staging(self._io, self._source.output)
            plan.write(self._io)
        return plan

    # -- building --------------------------------------------------------------------------------------------

    def _attempt(self) -> str:
        """Builds by the plan. Returns an empty string, or the path of a file whose content is not what a range wrote.

        Stops after the ranges if they do not fit together.
        """
        plan = self.plan
        notes = {} if self._dry_run else self._read_notes()
        self.resumed = len(notes)
        missing = [piece for piece in plan.ranges if piece.number not in notes]
        files = Files() if self._dry_run else self._io
        built = self._run(functools.partial(build_range, plan, files, self._dry_run), missing)
        notes |= {note.number: note for note in map(decode_note, built)}
        self.totals = totals = combine_notes(plan, (notes[piece.number] for piece in plan.ranges))
        if not totals.fits:
            return ""
        if totals.in_log_order:
            self._derive_in_log_order()
        plans = totals.queue_plans(self._task.queue_file_size)
        if totals.damage or totals.placeholders:
            self._keep_lost_tails(plans)
        self.queues = {name: each.units for name, each in plans.items()}
        parts: list[IndexFilePlan] = []
        if self._task.index is not None:
            parts = cut_keys(totals.keys, self._task.geometry, self._source.clock())
        self.items = sum(part.items for part in parts)
        return "" if self._dry_run else self._complete(plans, parts)

    def _read_notes(self) -> dict[int, RangeNote]:
        notes = (read_note(self.plan, self._io, piece) for piece in self.plan.ranges)
        return {note.number: note for note in notes if note is not None}

    def _complete(self, plans: Mapping[QueueName, QueuePlan], parts: list[IndexFilePlan]) -> str:
        plan = self.plan
        for topic, queue_id in set(self.built_queues.names()) - plans.keys():
            remove_all(self._io, path_below(plan.queues, topic, queue_id))
        remove_all(self._io, plan.index)
        wrong = self._run(
            functools.partial(complete, plan, self._io), [*parts, *grouped(list(plans.values()), _GROUPS)]
        )
        return next((each.decode() for each in wrong if each), "")

    @property
    def old_queues(self) -> QueueFolder:
        """The selected queues that are in the store now."""
        folder = self._source.layout.consume_queue
        return QueueFolder(self._io, folder, self._task.queue_file_size, self._task.selects)

    @property
    def built_queues(self) -> QueueFolder:
        """The queues in the staging folder."""
        return QueueFolder(self._io, self.plan.queues, self._task.queue_file_size)

    # -- queues in log order ---------------------------------------------------------------------------------

    def _derive_in_log_order(self) -> None:
        """Derives the queues whose offsets go back, and writes their units. Of records with one offset, the first wins.

        A queue that restarts at offset 0 gets no unit for the records before.
        """
        totals, names = self.totals, self.totals.in_log_order
        covers: dict[QueueName, QueueCover] = {}
        for topic, queue_id, runs, _ in self._derived_again():
            for first, end, physical_first, physical_end in runs:
                cover = covers.setdefault((topic, queue_id), QueueCover())
                cover.add(first, end - first, physical_first, physical_end, matched=True)
        restarts = find_restarts(covers, self.old_queues)
        for topic, queue_id in () if self._dry_run else names:
            remove_all(self._io, path_below(self.plan.queues, topic, queue_id))
        totals.queues = {name: runs for name, runs in totals.queues.items() if name not in names}
        for topic, queue_id, runs, units in self._derived_again():
            kept, part_units = totals.queues.setdefault((topic, queue_id), []), units
            for first, end, physical_first, physical_end in runs:
                count = end - first
                run_units, part_units = part_units[: count * UNIT_SIZE], part_units[count * UNIT_SIZE :]
                skipped = max(kept[-1].end - first, 0) if kept else 0
                if skipped >= count or physical_first < restarts.get((topic, queue_id), 0):
                    continue
                run_units = run_units[skipped * UNIT_SIZE :]
                run = CoveredRun(first + skipped, end, int.from_bytes(run_units[:8], "big"), physical_end)
                kept.append(run)
                if not self._dry_run:
                    self._store_run(topic, queue_id, run, run_units)
        totals.queues = {name: runs for name, runs in totals.queues.items() if runs}

    def _store_run(self, topic: str, queue_id: int, run: CoveredRun, units: memoryview) -> None:
        part = topic, queue_id, [(run.first, run.end, run.physical_first, run.physical_end)], units
        store_units(self._io, self.plan.queues, self._task.queue_file_size, part)

    def _derived_again(self) -> Iterator[QueuePart]:
        for piece in self.plan.ranges:
            if piece.number not in self.totals.hidden:
                yield from derive_range(self._task, self._io, piece, only=self.totals.in_log_order).queues

    # -- lost messages at the ends of queues -----------------------------------------------------------------

    def _keep_lost_tails(self, plans: dict[QueueName, QueuePlan]) -> None:
        """Adds units for lost messages at the ends of the old queues to the plans."""
        units_in_file = self._task.queue_file_size // UNIT_SIZE
        view = self._io if self._io.read_only else OverlayFiles()
        log = MappedFileQueue(view, Path(self._task.log.folder), self._task.log.file_size)
        log.map_files([base for base, _ in self._task.log.files])
        with contextlib.closing(log):
            tails = _LostTails(self.totals, log)
            for old in self.old_queues:
                name = old.topic, old.queue_id
                lost = tails.find(old, plans.get(name), self._task.deleted.get(old.topic, 0))
                if lost and name not in plans:
                    first = lost[0].first
                    begin = first - first % units_in_file
                    blank = [GapFill(begin, first, PRE_BLANK.hex())] if begin < first else []
                    plans[name] = QueuePlan(*name, begin, [], blank)
                if lost:
                    plans[name].fills += lost

    # -- swapping --------------------------------------------------------------------------------------------

    def replacements(self) -> tuple[dict[QueueName, Replacement], Replacement | None]:
        """Returns all built queues and the old ones that are obsolete, and the index if it was built."""
        queues = {name: Replacement(_REQUESTED, units) for name, units in self.queues.items()}
        if self._source.owned is not None:
            obsolete = obsolete_queues(self.old_queues, queues, self.totals.begin)
            queues |= {name: Replacement(reason, 0) for name, reason in obsolete.items()}
        return queues, None if self._task.index is None else Replacement(_REQUESTED, self.items)

    def preview(self) -> list[Rebuilt]:
        """Returns what `swap_in` would replace, and where the old files would go."""
        queues, index = self.replacements()
        root, kept = self._source.output.root, []
        for place in _places(queues, index):
            is_there = self._source.owned is not None and self._io.is_folder(root / place)
            kept.append(within(root, self._source.quarantine.target_for(root / place)) if is_there else "")
        return [Rebuilt(*each, where) for each, where in zip(_described(queues, index), kept, strict=True)]

    def swap_in(self, queues: Mapping[QueueName, Replacement], index: Replacement | None) -> list[Rebuilt]:
        """Replaces old folders with built ones, and clears the staging folder. A queue that was not built is removed.

        Raises BadStore or StoreFailed; then the old files are in place, or the next start finishes the swap.
        """
        layout = self._source.output
        if queues or index is not None:
            self._refuse_other_disks()
        moves = [self._move(place) for place in _places(queues, index)]
        swap(self._io, layout, moves)
        for topic in {topic for topic, _ in queues}:
            self._io.remove_folder(path_below(layout.consume_queue, topic))
        clear_staging(self._io, layout)
        kept = [move.kept if self._io.exists(layout.root / move.kept) else "" for move in moves]
        return [Rebuilt(*each, where) for each, where in zip(_described(queues, index), kept, strict=True)]

    def _refuse_other_disks(self) -> None:
        """Raises BadStore if a folder is on another disk: the swap renames folders, and no start could finish it."""
        layout = self._source.output
        for folder in (layout.consume_queue, layout.index):
            with contextlib.suppress(FileNotFoundError):
                if self._io.partition(folder) != self._io.partition(layout.root):
                    raise BadStore(
                        "the folder is on another disk than the store, so nothing in it can be swapped; move it "
                        "elsewhere and start the store, which builds it again",
                        path=folder,
                    )

    def _move(self, folder: Path) -> Move:
        layout = self._source.output
        kept = self._source.quarantine.target_for(layout.root / folder)
        return Move(str(folder), self._io.is_folder(layout.staging / folder), within(layout.root, kept))


def _places(queues: Mapping[QueueName, Replacement], index: Replacement | None) -> list[Path]:
    """Returns the folders of all replacements, relative to the store's, in the order of `_described`."""
    places = [Path("consumequeue", topic, str(queue_id)) for topic, queue_id in sorted(queues)]
    return places if index is None else [*places, Path("index")]


def _described(queues: Mapping[QueueName, Replacement], index: Replacement | None) -> list[tuple[str, str, int]]:
    """Returns name, reason and number of units of all replacements, as reports list them."""
    named = [(f"{name[0]} queue {name[1]}", *queues[name]) for name in sorted(queues)]
    return named if index is None else [*named, ("index", *index)]


class _LostTails:
    """Finds the lost messages at the ends of old queues, and the units that they get."""

    def __init__(self, totals: RangeTotals, log: MappedFileQueue) -> None:
        self._damage = totals.damage
        self._placeholders = Placeholders()
        self._placeholders.add(totals.placeholders)
        self._log = log

    def find(self, old: ConsumeQueue, built: QueuePlan | None, begin: int) -> list[GapFill]:
        """Returns units for the lost messages that the old queue has after the end of the built queue.

        What comes before a message that expired with the log's first files has expired, too, and is not lost; nor is
        what a deleted topic had before the physical offset `begin`.
        """
        lost: list[GapFill] = []
        end = begin if built is None else built.records[-1].physical_end
        first = start = max(0 if built is None else built.end, old.files.min_offset // UNIT_SIZE)
        for number in range(first, old.max_offset):
            offset, size, _ = old.unit(number)
            if size != NO_RECORD_SIZE and offset < max(self._log.min_offset, begin):
                lost, start = [], first
                continue
            unit = self._unit_of(old.unit(number), end)
            if unit is not None:
                lost.append(GapFill(start, number + 1, unit.hex()))
                start = number + 1
        return lost

    def _unit_of(self, unit: tuple[int, int, int], begin: int) -> bytes | None:
        """Returns the new unit for a lost message; None if the message is not known to be lost.

        `unit`: its old unit. `begin`: the message was in the log after this physical offset.
        """
        offset, size, tags_code = unit
        if size == NO_RECORD_SIZE:  # a start has replaced the unit already
            covered = self._placeholders.first_between(begin, _FAR)
            if covered is None and any(each.physical_offset >= begin for each in self._damage):
                return PRE_BLANK
        else:
            covered = self._covering(offset)
            if covered is None and any(each.physical_offset <= offset < each.end for each in self._damage):
                return pack_unit(offset, size, tags_code)
        return None if covered is None else pack_unit(*covered, 0)

    def _covering(self, offset: int) -> tuple[int, int] | None:
        """Returns (offset, size) of the placeholder that covers a physical offset, or None.

        The filler after a placeholder at the end of a file counts as part of the placeholder.
        """
        placeholder = self._placeholders.last_before(offset)
        if placeholder is None or offset < sum(placeholder):
            return placeholder
        size, end = self._log.file_size, sum(placeholder)
        file = self._log.find(end) if end // size == offset // size else None
        if file is None:
            return None
        with file.map.view[end % size : end % size + BLANK_HEADER_SIZE] as header:
            return placeholder if int.from_bytes(header[4:], "big") == BLANK_MAGIC else None
