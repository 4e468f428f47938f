"""How full the disk is, and the thread that refuses puts while it is full.

The watcher looks once a second, whatever the cleaner is doing, and takes puts again by itself as soon as there is room,
whoever made it. A disk that cannot be measured is taken for a roomy one: nothing is refused or deleted on a guess.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.retention.policy import Level, Limits, Usage
from penstock.store.running_flags import RunningFlags, Trouble
from penstock.store.worker import Worker

log = logging.getLogger("penstock.store")

LOOK_SECONDS = 1.0


class DiskGauge:
    """Measures the log's partition, and that of the queues if it is another. Safe from any thread."""

    def __init__(self, files: Files, layout: Layout) -> None:
        self._io = files
        self._folders = (layout.commit_log, layout.consume_queue)
        self._said: str | None = None

    def measure(self) -> list[Usage]:
        """The log's partition first; without those that cannot be measured."""
        found: dict[int, Usage] = {}
        try:
            for folder in map(self._nearest, self._folders):
                partition = self._io.partition(folder)
                if partition not in found:
                    found[partition] = Usage(folder, *self._io.disk_usage(folder))
            self._said = None
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
            if why != self._said:
                log.warning("the disk cannot be measured (%s); it is taken for a roomy one", why)
            self._said = why
        return list(found.values())

    def _nearest(self, folder: Path) -> Path:
        """The folder, or the one above it that exists: before the first message there is no log."""
        while not self._io.exists(folder) and folder != folder.parent:
            folder = folder.parent
        return folder


class DiskWatcher(Worker):
    """Keeps the running flag DISK_FULL true, and tells when files should go."""

    def __init__(self, gauge: DiskGauge, limits: Limits, flags: RunningFlags, pressed: Callable[[], object]) -> None:
        super().__init__("penstock-disk", LOOK_SECONDS)
        self._gauge = gauge
        self._limits = limits
        self._flags = flags
        self._pressed = pressed
        self.level = Level.ROOMY

    def work(self) -> None:
        level, usage = self._limits.worst(self._gauge.measure())
        if usage is not None and level is Level.FULL:
            reason = self._limits.refusal(usage)
            if self.level is not Level.FULL:
                log.error("puts are refused: %s", reason)
            self._flags.raise_trouble(Trouble.DISK_FULL, reason)
        elif self.level is Level.FULL:
            self._flags.clear(Trouble.DISK_FULL)
            log.warning("the disk has room again: puts are taken")
        risen, self.level = level > self.level, level
        if risen and level >= Level.YOUNG_FILES_GO:
            self._pressed()

    def finish(self) -> None:
        """Nothing is left to do at the end."""
