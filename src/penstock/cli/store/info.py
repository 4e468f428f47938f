"""`penstock store info` (contents and state of a store) and `penstock store conf` (its broker.conf)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from penstock.cli.options import AsJson, Config, Folder, Pairs
from penstock.cli.output import add_row, show, table, write, write_json
from penstock.cli.readonly_store import ReadOnlyStore, open_readonly, owner_name
from penstock.clock import now_ms
from penstock.config.java_properties import parse_properties
from penstock.errors import BadStore
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.human_units import format_size, format_time
from penstock.store import Dispatch, MessageStore
from penstock.store.config_files import ConfigFile, ConfigFiles
from penstock.store.damage_and_quarantine import quarantined_folders
from penstock.store.external_dispatch.files_shared_with_job import is_external
from penstock.store.index import IndexFile
from penstock.store.readonly.infer_file_sizes import fit_to_files
from penstock.store.readonly.store_folder import StoreFolder
from penstock.store.settings import to_broker_conf


def collect(view: ReadOnlyStore) -> dict[str, Any]:
    """Returns the JSON object of `store info`. Times are milliseconds, sizes bytes, offsets as in the files."""
    store, place = view.store, view.place
    report = store.report
    behind = max(report.log_end - report.queues_end, 0)
    return {
        "path": str(place.layout.root.absolute()),
        "in_use_by": place.owner or None,
        "last_exit": _last_exit(view),
        "commit_log": _commit_log(store),
        **_dispatch(view),
        "dispatch_behind_bytes": behind,
        "dispatch_behind_messages": report.units_added,
        "dispatch_behind_ms": _age(store, report.queues_end) if behind else 0,
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
        "quarantine_folders": msgspec.to_builtins(quarantined_folders(place.files, place.layout.quarantine)),
        "quarantine_max_bytes": place.settings.quarantine_max_bytes,
        **_disk(place),
    }


def _last_exit(view: ReadOnlyStore) -> str:
    if view.place.owner:
        return "running"
    return "clean" if view.store.report.clean_exit else "crashed"


# -- log and queues --


def _dispatch(view: ReadOnlyStore) -> dict[str, Any]:
    """Returns what builds queues and index, and the process of an external job, if one runs."""
    files, layout = view.place.files, view.place.layout
    if not is_external(files, layout):
        return {"dispatch": str(Dispatch.INLINE), "dispatch_job": None}
    return {"dispatch": str(Dispatch.EXTERNAL), "dispatch_job": files.lock_owner(layout.dispatch_lock) or None}


def _age(store: MessageStore, offset: int) -> int:
    """Returns the milliseconds since the record at this physical offset was stored; 0 if there is none."""
    stored = store.records.store_timestamp(offset)
    return max(now_ms() - stored, 0) if stored > 0 else 0


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


# -- index --


def _index(view: ReadOnlyStore) -> dict[str, Any]:
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


# -- checkpoint, config, disk, quarantine --


def _checkpoint(path: Path) -> dict[str, Any] | None:
    if not path.is_file() or path.stat().st_size != CHECKPOINT_SIZE:
        return None
    page = Checkpoint.unpack(path.read_bytes())
    return {"physic": page.physic, "logics": page.logics, "index": page.index}


def _config(place: StoreFolder) -> list[dict[str, Any]]:
    """Returns the config files that exist or have a backup, each with its problem."""
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
    """Returns the sum of the file sizes, and the sum of the blocks allocated on disk, both in bytes."""
    layout = place.layout
    inside = layout.commit_log.is_relative_to(layout.root)
    folders = [layout.root] if inside else [layout.root, layout.commit_log]
    facts = [fact for folder in folders for _, fact in place.files.files_below(folder)]
    return {
        "apparent_bytes": sum(fact.st_size for fact in facts),
        "allocated_bytes": sum(fact.st_blocks * 512 for fact in facts),
    }


def _quarantine(place: StoreFolder) -> list[dict[str, Any]]:
    root, layout = place.layout.root, place.layout
    files = [(str(path.relative_to(root)), fact.st_size) for path, fact in place.files.files_below(layout.quarantine)]
    return [{"path": path, "size": size} for path, size in sorted(files)]


def conf(folder: Folder, config: Config = None, pairs: Pairs = None, as_json: AsJson = False) -> None:
    """Print the broker.conf that a Java broker needs for this store.

    It always contains paths and the file sizes, then the settings of --config and --set that differ from RocketMQ's
    defaults. maxMessageSize is at most half a commitlog file, because a larger record could not be stored.

    Examples:

    \b
      penstock store conf data/store > broker.conf
      penstock store conf data/store --set brokerName=broker-a --json
    """
    place = StoreFolder.find(folder, config, pairs)
    settings, problem = fit_to_files(place.settings, place.files, place.layout)
    if problem and settings.message_index_enable:
        raise BadStore(problem)
    if "max_message_size" not in settings.given:
        largest = min(settings.max_message_size, settings.mapped_file_size_commit_log // 2)
        settings = settings.with_changes(max_message_size=largest)
    text = to_broker_conf(settings)
    if as_json:
        write_json({entry.name: entry.value for entry in parse_properties(text.encode())})
    else:
        write(text)


_FILES_SHOWN = 20
_DAMAGE = ("at", "bytes", "reason")


def info(folder: Folder, config: Config = None, pairs: Pairs = None, as_json: AsJson = False) -> None:
    """Contents and state of a store.

    Files, offsets, topics and queues, index usage, checkpoint, how the store was closed, and what a start would find
    and do. After a clean exit a start scans only the last files; `penstock store verify` reads everything.

    Examples:

    \b
      penstock store info data/store
      penstock store info data/store --json
    """
    with open_readonly(folder, config, pairs) as view:
        report = collect(view)
    if as_json:
        write_json(report)
    else:
        show_info(report)


def show_info(report: dict[str, Any]) -> None:
    for part in (_summary(report), *_tables(report)):
        show(part, "")


def _summary(report: dict[str, Any]) -> Table:
    log, checkpoint, recovery = report["commit_log"], report["checkpoint"], report["recovery"]
    times = "none" if checkpoint is None else ", ".join(f"{name} {format_time(at)}" for name, at in checkpoint.items())
    state = f"in use by {owner_name(report['in_use_by'])}" if report["in_use_by"] else report["last_exit"]
    held = sum(folder["size"] for folder in report["quarantine_folders"])
    files = f"{len(log['files'])} files of {format_size(log['file_size'])}"
    allocated = format_size(report["allocated_bytes"])
    lines = {
        "last exit": state,
        "log": f"{log['min_offset']} to {log['max_offset']}, {files}",
        "stored": f"{format_time(log['earliest_store_timestamp'])} to {format_time(log['latest_store_timestamp'])}",
        "dispatch": _dispatch_line(report),
        "checkpoint": times,
        "index": _index_line(report["index"]),
        "damage": f"{len(recovery['damage'])} ranges, {recovery['torn_bytes']} torn bytes at the end",
        "quarantine": f"{format_size(held)} of {format_size(report['quarantine_max_bytes'])}",
        "on disk": f"{allocated} allocated, {format_size(report['apparent_bytes'])} apparent",
    }
    grid = table(report["path"], "", "")
    grid.show_header = False
    for name, value in lines.items():
        add_row(grid, name, value)
    return grid


def _dispatch_line(report: dict[str, Any]) -> str:
    behind = f"{report['dispatch_behind_messages']} messages, {report['dispatch_behind_bytes']} bytes behind"
    if report["dispatch_behind_bytes"]:
        behind += f", {report['dispatch_behind_ms'] / 1000:.0f} s"
    if report["dispatch"] == Dispatch.INLINE:
        return behind
    job = report["dispatch_job"]
    runs = f"by {owner_name(job)}" if job else "and no job runs: start `penstock pipeline dispatch`"
    return f"external, {runs}; {behind}"


def _index_line(index: dict[str, Any]) -> str:
    if not index["readable"]:
        return str(index["reason"])
    return f"{len(index['files'])} files of {index['slots']} slots and {index['items']} items"


def _tables(report: dict[str, Any]) -> Iterator[Table]:
    if report["topics"]:
        is_late = report["dispatch"] == Dispatch.EXTERNAL and report["dispatch_behind_bytes"]
        yield _queues(report["topics"], "queues, with messages that wait for the dispatch job" if is_late else "queues")
    if report["index"]["files"]:
        yield _index_files(report["index"]["files"])
    if report["config"]:
        grid = table("config", "file", "present", "backup", "note")
        for file in report["config"]:
            add_row(grid, file["name"], _yes(file["present"]), _yes(file["backup"]), file["note"])
        yield grid
    if report["quarantine"]:
        grid = table("quarantine", "file", "bytes", right=("bytes",))
        for file in report["quarantine"][:_FILES_SHOWN]:
            add_row(grid, file["path"], file["size"])
        if len(report["quarantine"]) > _FILES_SHOWN:
            add_row(grid, f"and {len(report['quarantine']) - _FILES_SHOWN} more", "")
        yield grid
        grid = table("quarantine by start or repair", "folder", "files", "on disk", right=("files", "on disk"))
        for folder in report["quarantine_folders"]:
            add_row(grid, folder["folder"], folder["files"], format_size(folder["size"]))
        yield grid
    if report["recovery"]["damage"]:
        grid = table("damage: Java would truncate here; run `penstock store repair`", *_DAMAGE, right=_DAMAGE[:2])
        for each in report["recovery"]["damage"]:
            add_row(grid, each["physical_offset"], each["size"], each["reason"])
        yield grid
    if report["recovery"]["notes"]:
        grid = table("a start would report", "")
        grid.show_header = False
        for note in report["recovery"]["notes"]:
            add_row(grid, note)
        yield grid


def _queues(topics: list[dict[str, Any]], title: str) -> Table:
    numbers = ("queue", "min", "max", "messages")
    grid = table(title, "topic", *numbers, "newest", right=numbers)
    for topic in topics:
        for queue in topic["queues"]:
            ends = (queue["min_offset"], queue["max_offset"], queue["count"])
            add_row(grid, topic["topic"], queue["queue_id"], *ends, format_time(queue["latest_store_timestamp"]))
    return grid


def _index_files(files: list[dict[str, Any]]) -> Table:
    grid = table("index files", "file", "items", "of", "full", "from", "to", right=("items", "of", "full"))
    for file in files:
        used, capacity = file["items_used"], file["items_capacity"]
        times = (format_time(file["begin_timestamp"]), format_time(file["end_timestamp"]))
        add_row(grid, file["name"], used, capacity, f"{used / capacity:.1%}", *times)
    return grid


def _yes(value: bool) -> str:
    return "yes" if value else "no"
