"""The files of one store or of several as a place to read from.

Paths may be globs. Each store is called by its folder's name, in the column `broker` and in offsets; where two folders
have the same name, by as much of their paths as tells them apart.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.errors import BadSettings
from penstock.pipeline.one_store import OneStore, log_queue
from penstock.pipeline.options import Options
from penstock.pipeline.places import Task
from penstock.pipeline.ranges import Queue, Span
from penstock.store.folder import StoreFolder

_FILE_ADDRESS: Final = re.compile(r"^file:(//)?(?=/)")


class StorePlace:
    """Stores by their names. `following`: for a stream, which looks at them again and again."""

    def __init__(self, options: Options, *, following: bool = False) -> None:
        paths = find_paths(options.path)
        self.name = ", ".join(str(path) for path in paths)
        self._options = options
        config = Path(options.config) if options.config else None
        self._stores: dict[str, OneStore] = {}
        try:
            for broker, path in name_stores(paths).items():
                self._stores[broker] = OneStore(
                    StoreFolder.find(path, config, options.settings),
                    broker,
                    following=following,
                    by_key=bool(options.keys),
                )
        except BaseException:
            self.close()
            raise

    def refresh(self) -> None:
        for store in self._stores.values():
            store.refresh()

    def close(self) -> None:
        for store in self._stores.values():
            store.close()

    def looked_up(self) -> None:
        """What was opened to look up times and keys may go: a stream needs it only at its start."""
        for store in self._stores.values():
            store.close_view()

    def topics(self) -> list[str]:
        return sorted({topic for store in self._stores.values() for topic, _ in store.queues()})

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        if self._options.order == "log":
            return [log_queue(broker) for broker in sorted(self._stores)]
        wanted = set(topics)
        return sorted(
            Queue(topic, broker, queue_id)
            for broker, store in self._stores.items()
            for topic, queue_id in store.queues()
            if topic in wanted
        )

    def bounds(self, queue: Queue) -> tuple[int, int]:
        store = self._stores.get(queue.broker)
        return (0, 0) if store is None else store.bounds(queue.topic, queue.queue_id)

    def offset_at(self, queue: Queue, timestamp: int) -> int:
        return self._stores[queue.broker].offset_at(queue.topic, queue.queue_id, timestamp)

    def group_offset(self, group: str, queue: Queue) -> int | None:
        return self._stores[queue.broker].group_offset(group, queue.topic, queue.queue_id)

    def size(self, queue: Queue, start: int, stop: int) -> int:
        return self._stores[queue.broker].size(queue.topic, queue.queue_id, start, stop)

    def tasks(self, spans: Sequence[Sequence[Span]]) -> list[Task]:
        return [task for group in spans for task in self._tasks(group)]

    def _tasks(self, group: Sequence[Span]) -> list[Task]:
        """One task for each store that a group touches."""
        by_broker: dict[str, list[Span]] = {}
        for span in group:
            by_broker.setdefault(span.queue.broker, []).append(span)
        fail = self._options.fail_on_data_loss
        return [self._stores[broker].task(spans, fail_on_data_loss=fail) for broker, spans in by_broker.items()]

    def key_tasks(self, keys: Sequence[str], spans: Sequence[Span]) -> list[Task]:
        """Tasks that read only messages with one of some keys, which the index finds."""
        by_topic: dict[tuple[str, str], list[Span]] = {}
        for span in spans:
            by_topic.setdefault((span.queue.broker, span.queue.topic), []).append(span)
        fail = self._options.fail_on_data_loss
        found = (
            self._stores[broker].key_task(topic, keys, spans, fail_on_data_loss=fail)
            for (broker, topic), spans in by_topic.items()
        )
        return [task for task in found if task is not None]


def find_paths(given: Sequence[str]) -> list[Path]:
    """The folders that paths and globs name, sorted, each once. Raises BadSettings where a glob matches nothing."""
    found: dict[Path, Path] = {}
    for text in given:
        plain = _FILE_ADDRESS.sub("", text)
        folders = [Path(plain)]
        if glob.has_magic(plain) and not folders[0].is_dir():
            root = Path(folders[0].anchor or ".")
            folders = [match for match in root.glob(plain.removeprefix(folders[0].anchor)) if match.is_dir()]
        if not folders:
            raise BadSettings(f"path '{text}' matches no folder; check it, on this machine")
        for folder in folders:
            found.setdefault(folder.resolve(), folder.absolute())  # a folder has one store, whatever it is called
    return sorted(found.values())


def name_stores(paths: Sequence[Path]) -> dict[str, Path]:
    """A name for each folder: the shortest end of its path that no other has."""
    depth = 1
    while len(names := {"/".join(path.parts[-depth:]): path for path in paths}) < len(paths):
        depth += 1
    return names
