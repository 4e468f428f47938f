"""The commands onMaster and onSlave: what an operator wants done when this broker has become master or slave.

A command is split into words as a shell does it, but no shell runs it. It gets the role in its environment, its output
is logged, and after `LIMIT_S` it is killed with its process group. One thread runs all of them, one at a time and in
the order of the changes; it begins with the first change and ends with `stop`. A change that comes while an older one
still waits replaces it. Nothing waits for a command but `stop`, and a command that fails changes nothing: it is logged.

Use it from the loop's thread. A crash of the broker leaves a running command to itself.
"""

from __future__ import annotations

import logging
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings

log = logging.getLogger("penstock.failover")

LIMIT_S: Final = 30.0
"""Seconds that a command may take."""
STOP_S: Final = 5.0
"""Seconds that commands may take once the broker stops."""
_LOOK_S: Final = 0.05
_READ: Final = 64 << 10
_KEPT: Final = 4 << 10
"""Bytes of a command's output that are logged."""


class RoleChange(NamedTuple):
    """What this broker has become."""

    is_master: bool
    epoch: int
    """The newest epoch that is known; a master's own."""
    broker_name: str
    replica_id: int
    address: str
    """Where clients reach this broker."""

    @property
    def role(self) -> str:
        return "master" if self.is_master else "slave"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PENSTOCK_ROLE": self.role,
            "PENSTOCK_EPOCH": str(self.epoch),
            "PENSTOCK_BROKER_NAME": self.broker_name,
            "PENSTOCK_BROKER_ID": str(self.replica_id),
            "PENSTOCK_ADDRESS": self.address,
        }


def commands_of(settings: BrokerSettings) -> dict[str, list[str]]:
    """Returns the words of each command that is set, by role. Raises BadSettings if one could not be started."""
    texts = {"master": ("onMaster", settings.on_master), "slave": ("onSlave", settings.on_slave)}
    return {role: _words(name, text) for role, (name, text) in texts.items() if text is not None}


def _words(name: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadSettings(f"{name} cannot be split into words: {error}; check its quotes") from None
    if not words:
        raise BadSettings(f"{name} is empty; name a command, or remove the setting")
    if shutil.which(words[0]) is None:
        raise BadSettings(
            f"{name} names the command {words[0]}, which is not there or is not executable; give its whole path, and "
            "check its rights"
        )
    return words


class RoleCommands:
    """Runs the commands of one broker process."""

    def __init__(self, commands: Mapping[str, list[str]], limit_s: float = LIMIT_S) -> None:
        """`commands` are those of `commands_of`."""
        self._commands = commands
        self._limit_s = limit_s
        self._last: RoleChange | None = None
        self._next: RoleChange | None = None
        self._is_stopping = False
        self._kill_at = float("inf")
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def became(self, change: RoleChange) -> None:
        """Has the command for a change run, unless this broker has become the same before. Returns at once."""
        last, self._last = self._last, change
        if last is not None and not (last.is_master or change.is_master):
            return
        self._order(change)

    def _order(self, change: RoleChange) -> None:
        if change.role not in self._commands and self._next is None:
            return
        with self._changed:
            if self._next is not None:
                log.warning(
                    "%s of epoch %d is not run: the role has changed since", _name(self._next), self._next.epoch
                )
            self._next = change if change.role in self._commands else None
            self._changed.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="penstock-role-command", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the machine has no thread left; the role changes all the same
                    log.error("%s of epoch %d cannot be run yet: %s", _name(change), change.epoch, error)
                else:
                    self._thread = thread

    def stop(self, limit_s: float = STOP_S) -> None:
        """Has onSlave run if this was a master, which it is no longer, and waits for the commands. Blocks."""
        if self._last is not None and self._last.is_master:
            self._order(self._last._replace(is_master=False))
        with self._changed:
            self._is_stopping = True
            self._kill_at = time.monotonic() + limit_s
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(limit_s + 1.0)  # a process that hangs in the kernel cannot be killed

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._is_stopping)
                change, self._next = self._next, None
            if change is None or time.monotonic() > self._kill_at:
                return
            try:
                self._run_one(change)
            except Exception:  # the next change must be told all the same
                log.exception("%s of epoch %d could not be run", _name(change), change.epoch)

    def _run_one(self, change: RoleChange) -> None:
        what, began = f"{_name(change)} of epoch {change.epoch}", time.monotonic()
        try:
            process = subprocess.Popen(
                self._commands[change.role],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **change.environment},
                start_new_session=True,  # so that it is killed with its children
            )
        except OSError as error:
            log.error("%s could not be started: %s", what, error)
            return
        output, is_late = self._wait(process, began)
        for line in output.decode("utf-8", "backslashreplace").splitlines():
            log.info("%s says: %s", what, "".join(each if each.isprintable() else "?" for each in line))
        took = time.monotonic() - began
        if is_late:
            log.error("%s was killed after %.1f s, with its process group", what, took)
        elif process.returncode:
            log.error("%s ended with status %d after %.1f s", what, process.returncode, took)
        else:
            log.info("%s is done after %.1f s", what, took)

    def _wait(self, process: subprocess.Popen[bytes], began: float) -> tuple[bytes, bool]:
        """Returns the beginning of a command's output, and whether it had to be killed.

        What it left running in the background may keep the output open, and is not waited for.
        """
        output, total, stream = b"", 0, process.stdout
        assert stream is not None
        with stream, selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            is_open = True
            while True:
                data = b""
                if is_open and selector.select(_LOOK_S):
                    data = os.read(stream.fileno(), _READ)
                    is_open = bool(data)
                    output, total = (output + data)[:_KEPT], total + len(data)
                elif not is_open:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_LOOK_S)
                if not data and process.poll() is not None:
                    break
                if time.monotonic() > min(began + self._limit_s, self._kill_at):
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return output, True
        return output + (f"\n... {total - _KEPT} bytes more".encode() if total > _KEPT else b""), False


def _name(change: RoleChange) -> str:
    return "onMaster" if change.is_master else "onSlave"
