"""Everything `penstock store info` knows, gathered into one JSON object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.opening import View
from penstock.errors import BadStore
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.store import MessageStore
from penstock.store.config_files import ConfigFile, ConfigFiles
from penstock.store.folder import StoreFolder
from penstock.store.index_file import IndexFile
from penstock.store.quarantine import held_folders


def inspect(view: View) -> dict[str, Any]:
    """The store's figures; times in milliseconds, sizes in bytes, offsets as in the files."""
    store, place = view.store, view.place
    report = store.report
    return {
        "path": str(place.layout.root.absolute()),
        "in_use_by": place.owner or None,
        "last_exit": _last_exit(view),
        "commit_log": _commit_log(store),
        "dispatch_behind_bytes": max(report.log_end - report.queues_end, 0),
        "dispatch_behind_messages": report.units_added,
        "topics": _topics(store),
        "index": _index(view),
        "checkpoint": _checkpoint(place.layout.checkpoint),
        "recovery": {
            "walked_from": report.walked_from,
            "log_end": report.log_end,
            "torn_bytes": report.torn_bytes,
            "units_cut": report.units_cut,
            "skipped_bytes": store.dispatcher.skipped_bytes,
            "damage": msgspec.to_builtins(report.damage),
            "notes": report.notes,
        },
        "config": _config(place),
        "quarantine": _quarantine(place),
        "quarantine_folders": msgspec.to_builtins(held_folders(place.files, place.layout.quarantine)),
        "quarantine_max_bytes": place.settings.quarantine_max_bytes,
        **_disk(place),
    }


def _last_exit(view: View) -> str:
    if view.place.owner:
        return "running"
    return "clean" if view.store.report.clean_exit else "crashed"


# -- log and queues ------------------------------------------------------------------------------------------------


def _commit_log(store: MessageStore) -> dict[str, Any]:
    queue = store.log.queue
    return {
        "path": str(queue.folder.absolute()),
        "file_size": queue.file_size,
        "files": [file.path.name for file in queue.files],
        "min_offset": max(queue.min_offset, 0),
        "max_offset": queue.max_offset,
        "earliest_store_timestamp": store.earliest_time(),
        "latest_store_timestamp": store.log.newest_timestamp or -1,
    }


def _topics(store: MessageStore) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for queue in store.queues:
        lowest, highest = queue.min_offset, queue.max_offset
        by_topic.setdefault(queue.topic, []).append(
            {
                "queue_id": queue.queue_id,
                "min_offset": lowest,
                "max_offset": highest,
                "count": highest - lowest,
                "earliest_store_timestamp": store.store_time(queue.topic, queue.queue_id, lowest),
                "latest_store_timestamp": store.store_time(queue.topic, queue.queue_id, highest - 1),
            }
        )
    return [
        {"topic": topic, "count": sum(queue["count"] for queue in queues), "queues": queues}
        for topic, queues in by_topic.items()
    ]


# -- index ---------------------------------------------------------------------------------------------------------


def _index(view: View) -> dict[str, Any]:
    index = view.store.index
    if index is None:
        return {"readable": False, "reason": view.index_problem, "files": []}
    slots, items = index.geometry
    return {
        "readable": True,
        "slots": slots,
        "items": items,
        "files": [_index_file(file, slots, items) for file in index.files],
    }


def _index_file(file: IndexFile, slots: int, items: int) -> dict[str, Any]:
    header = file.header
    return {
        "name": file.path.name,
        "items_used": file.count - 1,
        "items_capacity": items - 1,  # item 0 is never used
        "slots_used": header.hash_slot_count,
        "slots_capacity": slots,
        "begin_timestamp": header.begin_timestamp,
        "end_timestamp": header.end_timestamp,
        "begin_physical_offset": header.begin_physical_offset,
        "end_physical_offset": header.end_physical_offset,
    }


# -- the rest ------------------------------------------------------------------------------------------------------


def _checkpoint(path: Path) -> dict[str, Any] | None:
    if not path.is_file() or path.stat().st_size != CHECKPOINT_SIZE:
        return None
    page = Checkpoint.unpack(path.read_bytes())
    return {"physic": page.physic, "logics": page.logics, "index": page.index}


def _config(place: StoreFolder) -> list[dict[str, Any]]:
    """The config files that are there, or whose backup is, and what is wrong with them."""
    every = ConfigFiles(place.files, place.layout.config)
    known: tuple[ConfigFile[Any], ...] = (
        every.topics,
        every.subscription_groups,
        every.consumer_offsets,
        every.delay_offsets,
        every.consumer_filters,
    )
    return [
        {"name": file.path.name, "present": file.path.exists(), "backup": file.backup.exists(), "note": _note(file)}
        for file in known
        if file.path.exists() or file.backup.exists()
    ]


def _note(file: ConfigFile[Any]) -> str:
    try:
        return file.read().note
    except BadStore as error:
        return str(error)


def _disk(place: StoreFolder) -> dict[str, int]:
    """Apparent size, and what the blocks on disk add up to."""
    layout = place.layout
    inside = layout.commit_log.is_relative_to(layout.root)
    folders = [layout.root] if inside else [layout.root, layout.commit_log]
    facts = [fact for folder in folders for _, fact in place.files.under(folder)]
    return {
        "apparent_bytes": sum(fact.st_size for fact in facts),
        "allocated_bytes": sum(fact.st_blocks * 512 for fact in facts),
    }


def _quarantine(place: StoreFolder) -> list[dict[str, Any]]:
    root, layout = place.layout.root, place.layout
    found = [(str(path.relative_to(root)), fact.st_size) for path, fact in place.files.under(layout.quarantine)]
    return [{"path": path, "size": size} for path, size in sorted(found)]
