"""The log's part of a repair: files get their shape, and every damaged range is saved and covered.

What is going to be covered is noted in `penstock/damaged.json` first, so that a repair that goes on after a crash still
knows, and says, what it is about.
"""

from __future__ import annotations

import msgspec

from penstock.format.kernels import Rows
from penstock.format.placeholder import find_placeholders, saved_paths
from penstock.store.damage import MISSING, DamagedRange, merged_by_file, read_damage, write_damage
from penstock.store.file_queue import FileQueue
from penstock.store.repair.compare import lost_in
from penstock.store.repair.cover import Cover
from penstock.store.repair.headers import Sequences, misplaced, restarts
from penstock.store.repair.old_queues import OldQueues, QueueName
from penstock.store.repair.place import Place
from penstock.store.repair.report import Change, Progress, RepairedRange, within
from penstock.store.repair.shapes import Shapes
from penstock.store.repair.survey import Survey, joined, survey, with_reasons
from penstock.store.repair.times import OddTime, OddTimes


class MendedLog(msgspec.Struct):
    """The log, walkable from its beginning to its end, and what had to be done."""

    begin: int = 0
    end: int = 0
    newest: int = 0
    """Store time of its last record."""
    ranges: list[RepairedRange] = []
    changes: list[Change] = []
    placeholders: list[tuple[int, int]] = []
    """(begin, end) of every placeholder in it, in order."""
    restarts: dict[QueueName, int] = {}
    """Where queues begin anew."""

    @property
    def damage(self) -> list[DamagedRange]:
        """What could not be covered."""
        left = [each for each in self.ranges if each.not_repaired]
        return [DamagedRange(each.physical_offset, each.size, each.reason) for each in left]


class LogRepair:
    """One repair of one log. Raises BadStore or StoreFailed; run again, it goes on."""

    def __init__(self, place: Place, progress: Progress) -> None:
        self._place = place
        self._io = place.files
        self._layout = place.layout
        self._progress = progress
        self._known = read_damage(place.files, place.layout.damaged)
        self._mended = MendedLog()
        self._sequences = Sequences()
        self._times = OddTimes(place.clock())
        self._queues = OldQueues(place.files, place.layout, place.settings.mapped_file_size_consume_queue)

    def mend(self) -> MendedLog:
        layout, size = self._layout, self._place.settings.mapped_file_size_commit_log
        shapes = Shapes(self._io, layout, size, self._place.quarantine)
        if not shapes.are_right:
            self._place.mark_unclean()
            self._note(shapes.missing)
            self._mended.changes += shapes.mend()
        log = FileQueue(self._io, layout.commit_log, size)
        log.load()
        try:
            found = self._walk(log)
            self._mended.begin, self._mended.end, self._mended.newest = found.begin, found.end, found.newest
            self._mended.restarts = restarts(self._sequences, self._queues)
            self._resume(log)
            self._cover(log, found)
        finally:
            log.close()
        return self._mended

    def forget(self) -> None:
        """At the end of a repair: what is covered is damage no more; what could not be is remembered."""
        left = self._mended.damage
        if left or read_damage(self._io, self._layout.damaged):
            write_damage(self._io, self._layout.damaged, left)

    def _note(self, ranges: list[DamagedRange]) -> None:
        self._known = merged_by_file([*self._known, *ranges], self._place.settings.mapped_file_size_commit_log)
        write_damage(self._io, self._layout.damaged, self._known)

    # -- looking ---------------------------------------------------------------------------------------------

    def _walk(self, log: FileQueue) -> Survey:
        """Damage is what the walk finds, and records whose headers are wrong."""
        found = survey(
            log.files,
            topics=self._sequences.topics,
            watch=self._watch,
            is_served=lambda begin, end: any(lost_in(queue, [(begin, end)]) for queue in self._queues),
            cuts=[each.physical_offset for each in self._known if each.reason == MISSING],
            now=self._place.clock(),
            progress=self._progress,
        )
        misread = misplaced(self._sequences, self._queues, log, found.begin)
        found.found = joined([*with_reasons(found.found, self._known), *misread])
        return found

    def _watch(self, data: memoryview, rows: Rows) -> None:
        self._sequences.watch(data, rows)
        self._times.watch(data, rows)
        for offset, size in find_placeholders(rows, self._sequences.topics.name):
            self._mended.placeholders.append((offset, offset + size))

    def _resume(self, log: FileQueue) -> None:
        """A repair before this one was killed when it had covered these, and could not say so."""
        for begin, end in self._mended.placeholders:
            known = next((each for each in self._known if each.physical_offset <= begin < each.end), None)
            file = log.find(begin)
            if known is not None and file is not None:
                saved = saved_paths(file.map.view[begin - file.from_offset : end - file.from_offset].tobytes())
                path = within(self._layout.root, file.path)
                self._mended.ranges.append(RepairedRange(path, begin, end - begin, known.reason, saved=saved))

    # -- covering --------------------------------------------------------------------------------------------

    def _cover(self, log: FileQueue, found: Survey) -> None:
        covered = [(each.physical_offset, each.end) for each in found.found]
        odd = [each for each in self._times.found() if not any(a <= each.physical_offset < b for a, b in covered)]
        if not found.found and not found.hidden and not odd:
            return
        place, files = self._place, {file.from_offset: file for file in log.files}
        cover = Cover(self._io, self._layout.root, place.settings, place.quarantine, place.clock())
        place.quarantine.make_room(sum(cover.room(files[each.file], each) for each in found.found))
        place.mark_unclean()
        self._note([DamagedRange(each.physical_offset, each.size, each.reason) for each in found.found])
        done_bytes, total = 0, sum(each.size for each in found.found)
        for each in found.found:
            self._progress("cover damage", done_bytes, total)
            done_bytes += each.size
            done = cover.cover(files[each.file], each)
            self._mended.ranges.append(done)
            if not done.not_repaired:
                self._mended.placeholders.append((each.physical_offset, each.end))
        self._mended.ranges.sort(key=lambda each: each.physical_offset)
        self._mended.placeholders.sort()
        self._mended.changes += [cover.clear(files[each.file], each) for each in found.hidden]
        self._mended.changes += [self._correct(cover, log, each) for each in odd]

    @staticmethod
    def _correct(cover: Cover, log: FileQueue, odd: OddTime) -> Change:
        file = log.find(odd.physical_offset)
        assert file is not None, "the walk came from there"
        return cover.correct(file, odd)
