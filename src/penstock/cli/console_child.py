"""The web console as a child process of `penstock serve`.

It starts before the store is opened, so that recovery can be watched, and ends when the broker stops. If the broker
dies, it stays up and says so; the next start of the same store replaces it (`console.end_previous_console`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from penstock.broker.settings import BrokerSettings
from penstock.cli.cluster_connection import read_account
from penstock.cli.console import HOW_TO_GET_IT, LISTENER_VARIABLE, TOKEN_VARIABLE, is_installed, link
from penstock.console.end_previous_console import take_over
from penstock.errors import PenstockError, Unreachable
from penstock.remoting.sockets import bind, parse_address
from penstock.remoting.tls import TlsMode, server_tls
from penstock.store import Settings

OFF: Final = "off"
log = logging.getLogger("penstock.serve")
_NOTIFY_S: Final = 0.5
_STOP_S: Final = 5.0


class ConsoleChild:
    """The child process. Use it in a `with` block, whose end stops the console unless `leave_behind` was called.

    This class binds the console's port, so that a port in use is reported at once. If the port is in use, or the
    packages of the extra `console` are missing, the broker runs without a console. A pipe reports the progress of
    recovery to the child. The token is passed in the environment, and an account by its file, because other users can
    see a command line. Any thread may call `notify`, but not two threads at the same time.
    """

    def __init__(
        self,
        listen: str,
        settings: Settings,
        names: socket.socket | None,
        config: Path | None,
        account: Path | None = None,
        log_options: Sequence[str] = (),
    ) -> None:
        """`account` is a file with an administrator's keys, for aclEnable. `log_options` say which log the console
        writes; it goes where the broker's goes. Raises BadSettings.
        """
        self.link = ""
        """The console's URL; empty without a console."""
        self._process: subprocess.Popen[bytes] | None = None
        self._notified: tuple[str, float] = ("", 0.0)
        if listen == OFF:
            return
        namesrv = _name_server(settings, names)
        if account is not None:
            read_account(account)  # raises for a bad file, before the store is opened
        obstacle = _obstacle(settings, namesrv, account)
        if obstacle:
            log.warning("no web console: %s", obstacle)
            return
        take_over(settings.store_path_root_dir)
        try:
            listener = bind(*parse_address(listen, "--console"))
        except Unreachable as error:
            log.warning("no web console: %s; --console HOST:PORT chooses another port", error)
            return
        with listener:
            self._start(listener, namesrv, settings, config, account, log_options)
        self.notify("opening the store")

    def _start(
        self,
        listener: socket.socket,
        namesrv: str,
        settings: Settings,
        config: Path | None,
        account: Path | None,
        log_options: Sequence[str],
    ) -> None:
        from penstock.console.console_login import make_token

        token = os.environ.get(TOKEN_VARIABLE, "") or make_token()
        address, port = listener.getsockname()[:2]
        command = [sys.executable, "-m", "penstock.cli.main", "console", "--under-serve", f"--namesrv={namesrv}"]
        command += [f"--listen={address}:{port}", f"--store={settings.store_path_root_dir}"]
        command.append(f"--exports={settings.store_path_root_dir.parent / 'exports'}")
        command += [] if config is None else [f"--config={config}"]
        command += [] if account is None else [f"--account={account}"]
        command += log_options
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C reaches only the broker, which then ends the console
            env={**os.environ, TOKEN_VARIABLE: token, LISTENER_VARIABLE: str(listener.fileno())},
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.link = link(address, port, token)

    def notify(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Reports the phase of the broker's recovery to the console. An empty phase means that the broker serves."""
        now = time.monotonic()
        if self._process is None or (phase and phase == self._notified[0] and now - self._notified[1] < _NOTIFY_S):
            return
        self._notified = phase, now
        assert self._process.stdin is not None
        line = json.dumps({"phase": phase, "done": done, "total": total}) + "\n"
        with contextlib.suppress(OSError):  # a console that has ended or does not read must not stop the broker
            os.write(self._process.stdin.fileno(), line.encode())

    def check(self) -> None:
        """Raises PenstockError if the console has ended by itself. The broker goes on without it."""
        if self._process is not None and (status := self._process.poll()) is not None:
            raise PenstockError(f"it has ended with status {status}; restart the broker to have it again")

    def leave_behind(self) -> None:
        """Lets the console go on without its broker, which has failed."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdin.close()  # not earlier: that would look like the broker's death


def _name_server(settings: Settings, names: socket.socket | None) -> str:
    """Returns the name servers for the console: the embedded one, or those at which the broker registers."""
    if names is None:
        return ";".join(BrokerSettings.of(settings).name_servers)
    host, port = names.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _obstacle(settings: Settings, namesrv: str, account: Path | None) -> str:
    """Returns the reason why the console cannot run and what to do; empty if it can run."""
    if not is_installed():
        return f"{HOW_TO_GET_IT}, or disable it with --console off"
    if not namesrv:
        return "it needs a name server, and none is configured"
    if BrokerSettings.of(settings).acl_enable and account is None:
        return "with aclEnable it needs an administrator's account, from --console-account FILE"
    if server_tls(settings.broker).mode is TlsMode.ENFORCING:
        return "with tls.server.mode=enforcing it needs certificates to trust; run `penstock console --trust FILE`"
    return ""
