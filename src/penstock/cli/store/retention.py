"""`penstock store retention`: explains which files retention would delete, when and why, and deletes them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import exit_codes
from penstock.cli.options import AsJson, Config, DryRun, Folder, Pairs
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.cli.readonly_store import ReadOnlyStore, open_readonly, owner_name
from penstock.errors import BadStore, StoreInUse
from penstock.human_units import format_size, format_time
from penstock.store import MessageStore, Settings
from penstock.store.readonly.store_folder import StoreFolder, quiet_log
from penstock.store.retention.explain import Outlook, PlannedDeletion

_MAX_UNREAD_SHOWN = 20


def retention(
    folder: Folder,
    config: Config = None,
    pairs: Pairs = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete expired log files, or explain what would be deleted.

    For each log file: its age, when it expires, when it will be deleted, and why. Also disk usage, its thresholds, and
    the consumer groups with unread messages in these files. Unless --dry-run is given, it then asks, and deletes by the
    rules of a running store: oldest first, never the last file, unexpired files only if the disk is too full. A
    running store deletes by itself; use --dry-run for it.

    Settings come from --config and --set: give those of the broker, otherwise RocketMQ's defaults apply.

    Examples:

    \b
      penstock store retention data/store --dry-run
      penstock store retention data/store --config broker.conf --set fileReservedTime=24 --yes
    """
    with open_readonly(folder, config, pairs) as view:
        outlook, place, settings = _explain(view), view.place, view.store.settings
        if view.index_problem and not dry_run and place.settings.message_index_enable:
            raise BadStore(view.index_problem)
    if place.owner and not dry_run:
        owner = owner_name(place.owner)
        raise StoreInUse(
            f"the store is in use by {owner}, which deletes expired files by itself; use --dry-run", path=folder
        )
    if not as_json:
        _show(str(folder.absolute()), outlook, settings)
    deleted: dict[str, Any] = {"files": [], "derived_files": 0, "bytes_freed": 0}
    if not dry_run and outlook.now.files:
        if not _confirmed(yes, outlook.now):
            write_note("nothing was deleted: give --yes, or confirm at a terminal.")
            raise typer.Exit(exit_codes.NOT_RUN)
        deleted = _delete(place, settings, outlook)
    if as_json:
        write_json({"path": str(folder.absolute()), **msgspec.to_builtins(outlook), "deleted": deleted})
    elif not dry_run:
        freed = f"{len(deleted['files'])} log files and {deleted['derived_files']} files of queues and index"
        write(f"deleted: {freed}, {format_size(deleted['bytes_freed'])}\n")


def _explain(view: ReadOnlyStore) -> Outlook:
    try:
        return view.store.explain_retention()
    except BadStore as error:
        write_note(f"consumer offsets are unknown: {error}.")
        return view.store.explain_retention({})


def _confirmed(yes: bool, going: PlannedDeletion) -> bool:
    if yes or not sys.stdin.isatty():
        return yes
    unread = sum(each.messages for each in going.unread)
    warning = f", with {unread} messages unread by some group" if unread else ""
    return typer.confirm(f"Delete {len(going.files)} files, {format_size(going.size)}{warning}?", err=True)


def _delete(place: StoreFolder, settings: Settings, outlook: Outlook) -> dict[str, Any]:
    """Runs the cleaner until it has nothing more to delete. Returns the result as a JSON object."""
    with quiet_log(), MessageStore.open(place.layout.root, settings) as store:
        assert store.retention is not None, "it is not read-only"
        while store.retention.cleaner.run(on_request=True):
            pass
        left = {file.path.name for file in store.log.queue.files}
        figures = store.retention.figures()
    return {
        "files": [file.name for file in outlook.files if file.name not in left],
        "derived_files": figures.derived_files_deleted,
        "bytes_freed": figures.bytes_freed,
    }


# -- text --


def _show(path: str, outlook: Outlook, settings: Settings) -> None:
    grid = table(path, "", "")
    grid.show_header = False
    for disk in outlook.disk:
        level = disk.level.lower().replace("_", " ")
        free = format_size(disk.free_bytes)
        add_row(grid, "disk", f"{disk.path}: {disk.used_ratio:.0%} used, {free} free: {level}")
    young = _level(settings.disk_space_clean_forcibly_ratio, settings, 2)
    full = _level(settings.disk_space_warning_level_ratio, settings, 1)
    expired = f"expired files are deleted above {settings.disk_max_used_space_ratio}%"
    add_row(grid, "thresholds", f"{expired}, unexpired ones {young}; puts are refused {full}")
    add_row(grid, "puts", f"refused: {outlook.puts_refused}" if outlook.puts_refused else "accepted")
    add_row(grid, "now", _summary(outlook.now))
    add_row(grid, "next hour", f"{format_time(outlook.next_hour.at_ms)}: {_summary(outlook.next_hour)}")
    show(grid, "")
    files = table(
        "the log", "file", "bytes", "modified", "newest message", "expires", "deleted at", "now", right=("bytes",)
    )
    for file in outlook.files:
        times = (file.modified_ms, file.stored_until_ms, file.expires_ms, file.goes_ms)
        verdict = f"{'delete' if file.cause else 'keep'}: {file.why}"
        add_row(files, file.name, file.size, *map(format_time, times), verdict)
    show(files, "")
    if outlook.now.unread:
        _show_unread("unread messages in files to delete now", outlook.now)
    if outlook.next_hour.unread != outlook.now.unread:
        _show_unread("unread messages in files to delete at the next hour", outlook.next_hour)


def _level(ratio: float, settings: Settings, times: int) -> str:
    """Returns a disk threshold in words."""
    enough, least = settings.disk_enough_free_bytes * times, settings.disk_min_free_bytes * times
    words = f"above {ratio:.0%}"
    words += f" with less than {format_size(enough)} free" if enough else ""
    return words + (f", or with less than {format_size(least)} free" if least else "")


def _summary(going: PlannedDeletion) -> str:
    if not going.files:
        return "nothing to delete"
    unread = sum(each.messages for each in going.unread)
    groups = len({each.group for each in going.unread})
    warning = f"; {unread} messages unread by {groups} groups" if unread else ""
    return f"{len(going.files)} files to delete, {format_size(going.size)}{warning}"


def _show_unread(title: str, going: PlannedDeletion) -> None:
    numbers = ("queue", "next offset", "messages", "bytes")
    grid = table(title, "group", "topic", *numbers, right=numbers)
    for each in going.unread[:_MAX_UNREAD_SHOWN]:
        at = each.next_offset if each.next_offset >= 0 else "-"
        add_row(grid, each.group, each.topic, each.queue_id, at, each.messages, each.size)
    more = len(going.unread) - _MAX_UNREAD_SHOWN
    if more > 0:
        add_row(grid, f"and {more} more; --json lists them", *[""] * (len(numbers) + 1))
    show(grid, "")
