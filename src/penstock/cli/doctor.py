"""`penstock doctor`: checks whether this machine can run a broker, and what is known about its store.

Each check is a function that yields `CheckResult`s. Nothing is changed: ports are bound for a moment, and the store is
not opened.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from penstock import __version__
from penstock.cli import exit_codes
from penstock.cli.options import AsJson, Config, Pairs, option
from penstock.cli.output import Colored, add_row, show, table, write, write_json
from penstock.errors import BadStore
from penstock.human_units import format_duration, format_size, format_time
from penstock.optional_packages import EXTRAS, missing_modules

_PORTS: Final = {"broker": "127.0.0.1:10911", "name server": "127.0.0.1:9876", "console": "127.0.0.1:8080"}
_MIN_FILES: Final = 65_536
_MIN_MAPS: Final = 65_530
_MIN_JAVA: Final = 17
_SKEW_MS: Final = 60_000
_TIME_ERROR: Final = 5  # of adjtimex: the clock is not synchronized


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    """Something does not work as it could, or a feature is missing."""
    PROBLEM = "PROBLEM"
    """A broker would not start here, or not keep its promises."""


_COLORS: Final = {CheckState.OK: "green", CheckState.NOTE: "yellow", CheckState.PROBLEM: "red"}


class CheckResult(NamedTuple):
    """What a check found, and what to do; nothing if all is well."""

    check: str
    state: CheckState
    found: str
    advice: str = ""


def doctor(
    store: Annotated[Path | None, option("--store", "DIR", "The store's directory; default: data/store.")] = None,
    address: Annotated[
        list[str] | None,
        option("--port", "HOST:PORT", "A port to check; repeatable. Default: those of `penstock serve`."),
    ] = None,
    brokers: Annotated[
        int | None, option("--brokers", "N", "Check for so many brokers; default: the stores in --store, or 1.")
    ] = None,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: ports, disk, limits, clock, Java, extras, store.

    Changes nothing. Exit status: 0 a broker can run here, maybe with notes; 1 problems found; 2 could not run.

    Examples:

    \b
      penstock doctor
      penstock doctor --brokers 4
      penstock doctor --store /srv/store --port 10.0.0.7:10911 --json
    """
    folder = store or Path("data/store")
    from penstock.store.readonly.store_folder import stores_in

    inside = stores_in(folder)
    count = brokers if brokers is not None else max(1, len(inside))
    ports = default_ports(count) if not address else {each: each for each in address}
    checks: list[Callable[[], Iterator[CheckResult]]] = [
        check_python,
        lambda: check_ports(ports),
        lambda: check_disk(folder),
        lambda: check_limits(Path("/proc/sys/vm/max_map_count")),
        check_clock,
        check_java,
        check_extras,
        *(partial(check_store, each, config, pairs) for each in inside or [folder]),
    ]
    if inside and count < len(inside):
        checks.append(lambda: check_left_out(inside, count))
    findings = [finding for check in checks for finding in check()]
    if as_json:
        write_json([{**each._asdict(), "state": each.state.value.lower()} for each in findings])
    else:
        _show(findings)
    if any(each.state is CheckState.PROBLEM for each in findings):
        raise typer.Exit(exit_codes.PROBLEM)


def _show(findings: list[CheckResult]) -> None:
    shown = table("", "", "check", "found")
    for each in findings:
        add_row(shown, Colored(each.state.value, _COLORS[each.state]), each.check, each.found)
        if each.advice:
            add_row(shown, "", "", f"→ {each.advice}")
    show(shown)
    problems = sum(each.state is CheckState.PROBLEM for each in findings)
    notes = sum(each.state is CheckState.NOTE for each in findings)
    write(f"{problems} problems, {notes} notes\n")


# -- this machine --


def check_python() -> Iterator[CheckResult]:
    from penstock.format import kernels

    versions = f"Penstock {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    if kernels.active == "plain":
        yield CheckResult(
            "version", CheckState.NOTE, f"{versions}, without compiled kernels", "reinstall with a C compiler"
        )
    else:
        yield CheckResult("version", CheckState.OK, versions)


def default_ports(brokers: int) -> dict[str, str]:
    """Returns the ports of `penstock serve --brokers` by what listens there. Raises BadSettings."""
    from penstock.cli.brokers.names_and_ports import MAX_BROKERS, STRIDE, names
    from penstock.errors import BadSettings
    from penstock.remoting.sockets import parse_address

    if not 1 <= brokers <= MAX_BROKERS:
        raise BadSettings(f"--brokers is {brokers}; it must be 1 to {MAX_BROKERS}")
    if brokers == 1:
        return dict(_PORTS)
    host, base = parse_address(_PORTS["broker"], "--port")
    several = {name: f"{host}:{base + STRIDE * at}" for at, name in enumerate(names("broker-a", brokers))}
    return several | {name: address for name, address in _PORTS.items() if name != "broker"}


def check_ports(ports: dict[str, str]) -> Iterator[CheckResult]:
    """Binds each address for a moment."""
    from penstock.remoting.sockets import parse_address

    for name, text in ports.items():
        host, port = parse_address(text, "--port")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
                trial.listen(1)
            except OSError as error:
                advice = "stop the process that uses it, or choose another one; if that is your broker, all is well"
                yield CheckResult("port", CheckState.NOTE, f"{name} {text}: {error.strerror}", advice)
            else:
                yield CheckResult(
                    "port", CheckState.OK, f"{name} {text} is free" if name != text else f"{text} is free"
                )


def check_disk(folder: Path) -> Iterator[CheckResult]:
    """Checks the file system of a store, or of the nearest folder above it that exists."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    usage = shutil.disk_usage(there)
    ratio = 1 - usage.free / usage.total
    found = f"{format_size(usage.free)} free of {format_size(usage.total)} at {there} ({ratio:.0%} used)"
    if not os.access(there, os.W_OK):
        yield CheckResult(
            "disk", CheckState.PROBLEM, f"{there} is read-only for this user", "check its owner and mount"
        )
    if ratio >= 0.9:
        yield CheckResult("disk", CheckState.PROBLEM, found, "free some space: a broker refuses messages from 90 % on")
    elif ratio >= 0.75:
        yield CheckResult("disk", CheckState.NOTE, found, "from 75 % on a broker deletes its oldest files early")
    else:
        yield CheckResult("disk", CheckState.OK, found)


def check_limits(max_map_count: Path) -> Iterator[CheckResult]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = files == resource.RLIM_INFINITY
    found = "open files: no limit" if unlimited else f"open files: {files}"
    if unlimited or files >= _MIN_FILES:
        yield CheckResult("limits", CheckState.OK, found)
    else:
        yield CheckResult("limits", CheckState.NOTE, found, f"ulimit -n {_MIN_FILES}, for many queues and clients")
    try:
        maps = int(max_map_count.read_text())
    except (OSError, ValueError):
        return
    advice = "" if maps >= _MIN_MAPS else f"sysctl -w vm.max_map_count={_MIN_MAPS * 4}, for many queues"
    yield CheckResult("limits", CheckState.NOTE if advice else CheckState.OK, f"mapped files: {maps}", advice)


def check_clock() -> Iterator[CheckResult]:
    now = format_time(time.time_ns() // 1_000_000, "seconds")
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # asks only, because all modes are 0
    except (OSError, AttributeError):
        yield CheckResult("clock", CheckState.OK, f"{now}; it is not known whether it is synchronized")
        return
    if state == _TIME_ERROR:
        yield CheckResult("clock", CheckState.NOTE, f"{now}, not synchronized", "run an NTP client such as chrony")
    else:
        yield CheckResult("clock", CheckState.OK, f"{now}, synchronized")


def check_java() -> Iterator[CheckResult]:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    advice = f"install Java {_MIN_JAVA} or later for `penstock pipeline`; brokers need none"
    try:
        ended = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        yield CheckResult("java", CheckState.NOTE, f"{java}: not found", advice)
        return
    version = re.search(r'version "(\d+)[^"]*"', ended.stderr)
    if version is None:
        yield CheckResult("java", CheckState.NOTE, f"{java}: does not run", advice)
    elif int(version[1]) < _MIN_JAVA:
        yield CheckResult("java", CheckState.NOTE, f"{java} is {version[0]}", advice)
    else:
        yield CheckResult("java", CheckState.OK, f"{java} is {version[0]}")


def check_extras() -> Iterator[CheckResult]:
    lacking = {extra: missing_modules(extra) for extra in EXTRAS}
    there = [extra for extra, names in lacking.items() if not names]
    yield CheckResult("extras", CheckState.OK, f"installed: {', '.join(there) or 'none'}")
    for extra, names in lacking.items():
        if names:
            advice = f"if you want it: {Path(sys.executable).name} -m pip install 'penstock[{extra}]'"
            yield CheckResult("extras", CheckState.NOTE, f"{extra} is not installed (no {', '.join(names)})", advice)


# -- the store --


def check_store(folder: Path, config: Path | None, pairs: list[str] | None) -> Iterator[CheckResult]:
    """Checks the lock, the last exit, and the clock against the newest message."""
    from penstock.cli.readonly_store import owner_name
    from penstock.store.readonly.store_folder import StoreFolder

    if not folder.exists():
        yield CheckResult("store", CheckState.OK, f"{folder} does not exist yet; `penstock serve` creates it")
        return
    try:
        place = StoreFolder.find(folder, config, pairs)
    except BadStore as error:
        yield CheckResult("store", CheckState.PROBLEM, str(error))
        return
    if place.owner:
        yield CheckResult("store lock", CheckState.OK, f"{folder} is in use by {owner_name(place.owner)}")
        yield CheckResult("last exit", CheckState.OK, "the store is open")
    else:
        yield CheckResult("store lock", CheckState.OK, f"{folder} is not in use")
        if place.closed_cleanly:
            yield CheckResult("last exit", CheckState.OK, "the store was closed cleanly")
        else:
            advice = f"the next start recovers by itself; `penstock store info {folder}` says what it would find"
            yield CheckResult("last exit", CheckState.NOTE, "the store was not closed cleanly", advice)
    yield from _check_newest(place.layout.checkpoint)


def check_left_out(stores: Sequence[Path], brokers: int) -> Iterator[CheckResult]:
    """Reports that there are more stores than brokers."""
    found = f"{len(stores)} stores ({', '.join(store.name for store in stores)}), and {brokers} brokers to serve them"
    advice = f"start with --brokers {len(stores)}: messages of a store that is left out are not served"
    yield CheckResult("store", CheckState.PROBLEM, found, advice)


def _check_newest(checkpoint: Path) -> Iterator[CheckResult]:
    """Compares the clock with the time of the newest message that was synced."""
    from penstock.errors import CorruptData
    from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint

    try:
        with checkpoint.open("rb") as file:
            newest = Checkpoint.unpack(file.read(CHECKPOINT_SIZE)).physic
    except (OSError, CorruptData, ValueError):
        return
    ahead = newest - time.time_ns() // 1_000_000
    if ahead > _SKEW_MS:
        found = f"the newest message is {format_duration(ahead)} in the future"
        yield CheckResult(
            "clock", CheckState.PROBLEM, found, "set the clock before a broker starts, or order by time is wrong"
        )
