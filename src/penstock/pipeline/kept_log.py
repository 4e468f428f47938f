"""A store's log whose files stay mapped from one task of a worker to the next.

The messages of a queue lie all over the log, so the tasks of a read touch the same pages one after the other. Mapping
them anew for each task takes longer than reading them.

The files of few logs are kept, and each only by its name's present owner: a task that begins looks whether a file was
deleted, replaced or cut meanwhile, and finds what is there now. Until then, or until the worker ends, the space of a
deleted file is not free. A log is in the hands of one task at a time; a second one at the same time maps for itself.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from penstock.store.light_view import FilesView, LogView

_MOST_KEPT: Final = 2

_lock = threading.Lock()
_kept: dict[tuple[Path, int], FilesView] = {}
"""By folder and size of files; the one that was read last is the last."""


class KeptLog(LogView):
    """A view of a log for one task. `close` leaves its files to the next one."""

    def __init__(self, folder: Path, file_size: int, min_offset: int, confirmed_offset: int) -> None:
        self._key = (folder, file_size)
        with _lock:
            files = _kept.pop(self._key, None)
        if files is not None:
            files.forget_changed()
        super().__init__(folder, file_size, min_offset, confirmed_offset, files)

    def close(self) -> None:
        with _lock:
            surplus = [_kept.pop(self._key, None)]
            _kept[self._key] = self.queue
            if len(_kept) > _MOST_KEPT:
                surplus.append(_kept.pop(next(iter(_kept))))
        for files in surplus:
            if files is not None:
                files.close()
