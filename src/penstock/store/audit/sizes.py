"""Which sizes a store's files should have: what the settings were given, what the store noted, what most files have.

An audit looks at stores that do not start, so files that disagree do not stop it: the others decide, and the odd one
is a finding. How many slots and items an index file has cannot be read from it: the store's note says it, and where
there is none, its size decides between the geometries that are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.format.index_layout import IndexGeometry
from penstock.format.queue_unit import UNIT_SIZE
from penstock.store.audit.listing import DataFile, StoreFiles
from penstock.store.dispatch_state import FileSizes
from penstock.store.settings import Settings


def fit_sizes(
    settings: Settings, found: StoreFiles, noted: FileSizes | None = None
) -> tuple[Settings, IndexGeometry | None]:
    """The settings with the sizes of these files, and the index's geometry if it is known.

    `noted` is what the store wrote down at its last close.
    """
    queue_files = [file for folder in found.queues.values() for file in folder.files if file.size % UNIT_SIZE == 0]
    for attribute, files, was in (
        ("mapped_file_size_commit_log", found.log.files, 0 if noted is None else noted.commit_log),
        ("mapped_file_size_consume_queue", tuple(queue_files), 0 if noted is None else noted.consume_queue),
    ):
        size = was if was and any(file.size == was for file in files) else usual_size(files)
        if size is not None and attribute not in settings.given:
            settings = settings.with_changes(**{attribute: size})
    known = [settings.index_geometry]
    if not {"max_hash_slot_num", "max_index_num"} & settings.given:
        known = [] if noted is None else [IndexGeometry(noted.hash_slots, noted.index_items)]
        known += [settings.index_geometry, Settings().index_geometry, Settings.dev().index_geometry]
    return settings, _geometry(known, noted is not None, {file.size for file in found.index.files})


def usual_size(files: Iterable[DataFile]) -> int | None:
    """The size that most names are multiples of; of several, the one that most files have, or the larger one."""
    files = [file for file in files if file.size]
    count = Counter(file.size for file in files)

    def standing(size: int) -> tuple[int, int, int]:
        return sum(file.base % size == 0 for file in files), count[size], size

    return max(count, key=standing, default=None)


def _geometry(known: list[IndexGeometry], is_sure: bool, sizes: set[int]) -> IndexGeometry | None:
    """The first that fits a file. Where none does, the first if it was given or noted, else nothing is known."""
    for geometry in known:
        if geometry.file_size in sizes:
            return geometry
    return known[0] if len(known) == 1 or is_sure or not sizes - {0} else None
