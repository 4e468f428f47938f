"""`penstock store info`: what is in a store and how it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from penstock.cli.inspection import inspect
from penstock.cli.opening import open_view, owner_name
from penstock.cli.options import AsJson, Config, Folder, Pairs
from penstock.cli.output import add_row, in_units, moment, show, table, write_json

_FILES_SHOWN = 20
_DAMAGE = ("at", "bytes", "reason")


def info(folder: Folder, config: Config = None, pairs: Pairs = None, as_json: AsJson = False) -> None:
    """What is in a store, and how it is.

    Files, offsets, topics and queues, how full the index is, the checkpoint, how the store was left, and what a start
    would find and do. After a clean exit a start walks the last files only: `penstock store log` reads everything.

    Examples:

    \b
      penstock store info data/store
      penstock store info data/store --json
    """
    with open_view(folder, config, pairs) as view:
        found = inspect(view)
    if as_json:
        write_json(found)
    else:
        show_info(found)


def show_info(found: dict[str, Any]) -> None:
    """The figures for people."""
    for part in (_summary(found), *_tables(found)):
        show(part, "")


def _summary(found: dict[str, Any]) -> Table:
    log, checkpoint, recovery = found["commit_log"], found["checkpoint"], found["recovery"]
    times = "none" if checkpoint is None else ", ".join(f"{name} {moment(at)}" for name, at in checkpoint.items())
    state = f"in use by {owner_name(found['in_use_by'])}" if found["in_use_by"] else found["last_exit"]
    held = sum(folder["size"] for folder in found["quarantine_folders"])
    lines = {
        "last exit": state,
        "log": f"{log['min_offset']} to {log['max_offset']}, {len(log['files'])} files of {in_units(log['file_size'])}",
        "stored": f"{moment(log['earliest_store_timestamp'])} to {moment(log['latest_store_timestamp'])}",
        "dispatch behind": f"{found['dispatch_behind_messages']} messages, {found['dispatch_behind_bytes']} bytes",
        "checkpoint": times,
        "index": _index_line(found["index"]),
        "damage": f"{len(recovery['damage'])} ranges, {recovery['torn_bytes']} torn bytes at the end",
        "kept aside": f"{in_units(held)} of {in_units(found['quarantine_max_bytes'])}",
        "on disk": f"{in_units(found['allocated_bytes'])} allocated, {in_units(found['apparent_bytes'])} apparent",
    }
    made = table(found["path"], "", "")
    made.show_header = False
    for name, value in lines.items():
        add_row(made, name, value)
    return made


def _index_line(index: dict[str, Any]) -> str:
    if not index["readable"]:
        return str(index["reason"])
    return f"{len(index['files'])} files of {index['slots']} slots and {index['items']} items"


def _tables(found: dict[str, Any]) -> Iterator[Table]:
    if found["topics"]:
        yield _queues(found["topics"])
    if found["index"]["files"]:
        yield _index_files(found["index"]["files"])
    if found["config"]:
        made = table("config", "file", "there", "backup", "note")
        for file in found["config"]:
            add_row(made, file["name"], _yes(file["present"]), _yes(file["backup"]), file["note"])
        yield made
    if found["quarantine"]:
        made = table("quarantine", "file", "bytes", right=("bytes",))
        for file in found["quarantine"][:_FILES_SHOWN]:
            add_row(made, file["path"], file["size"])
        if len(found["quarantine"]) > _FILES_SHOWN:
            add_row(made, f"and {len(found['quarantine']) - _FILES_SHOWN} more", "")
        yield made
        made = table("quarantine by start or repair", "folder", "files", "on disk", right=("files", "on disk"))
        for folder in found["quarantine_folders"]:
            add_row(made, folder["folder"], folder["files"], in_units(folder["size"]))
        yield made
    if found["recovery"]["damage"]:
        made = table("damage: Java would cut the log here; run `penstock store repair`", *_DAMAGE, right=_DAMAGE[:2])
        for each in found["recovery"]["damage"]:
            add_row(made, each["physical_offset"], each["size"], each["reason"])
        yield made
    if found["recovery"]["notes"]:
        made = table("a start would report", "")
        made.show_header = False
        for note in found["recovery"]["notes"]:
            add_row(made, note)
        yield made


def _queues(topics: list[dict[str, Any]]) -> Table:
    numbers = ("queue", "min", "max", "messages")
    made = table("queues", "topic", *numbers, "newest", right=numbers)
    for topic in topics:
        for queue in topic["queues"]:
            ends = (queue["min_offset"], queue["max_offset"], queue["count"])
            add_row(made, topic["topic"], queue["queue_id"], *ends, moment(queue["latest_store_timestamp"]))
    return made


def _index_files(files: list[dict[str, Any]]) -> Table:
    made = table("index files", "file", "items", "of", "full", "from", "to", right=("items", "of", "full"))
    for file in files:
        used, capacity = file["items_used"], file["items_capacity"]
        times = (moment(file["begin_timestamp"]), moment(file["end_timestamp"]))
        add_row(made, file["name"], used, capacity, f"{used / capacity:.1%}", *times)
    return made


def _yes(there: bool) -> str:
    return "yes" if there else "no"
