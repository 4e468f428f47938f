"""The web console as a child of `penstock serve`: started before the store is opened, ended with the broker.

The port is taken here, so that one that is in use is said at once; without it, or without the extra's packages, the
broker goes on alone. A pipe to the child tells it how far recovery is, and its end, however the broker ends, is what
has the child end. The token goes by the environment, and an account by the file that holds it: neither is on a command
line, which other users of this machine can see.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from penstock.broker.settings import BrokerSettings
from penstock.cli.console import HOW_TO_GET_IT, LISTENER_VARIABLE, TOKEN_VARIABLE, is_installed, link
from penstock.cli.network import read_account
from penstock.cli.output import say
from penstock.cli.serve_options import OFF
from penstock.errors import Unreachable
from penstock.remoting.addresses import parse_address
from penstock.remoting.sockets import bind
from penstock.remoting.tls import TlsMode, server_tls
from penstock.store import Settings

_TELL_S: Final = 0.5
_END_S: Final = 5.0


class ConsoleChild:
    """One child process, or none. Any thread may `tell`, one at a time."""

    def __init__(
        self,
        listen: str,
        settings: Settings,
        names: socket.socket | None,
        config: Path | None,
        account: Path | None = None,
    ) -> None:
        """`account` is a file with an administrator's keys, where access is controlled. Raises BadSettings."""
        self.link = ""
        """What a person opens; empty if there is no console."""
        self._process: subprocess.Popen[bytes] | None = None
        self._told: tuple[str, float] = ("", 0.0)
        if listen == OFF:
            return
        namesrv = _name_server(settings, names)
        if account is not None:
            read_account(account)  # what is wrong with it is said before the store is opened
        why = _why_not(settings, namesrv, account)
        if why:
            say(f"there is no web console: {why}")
            return
        try:
            listener = bind(*parse_address(listen, "--console"))
        except Unreachable as error:
            say(f"there is no web console: {error}; --console HOST:PORT chooses another port.")
            return
        with listener:
            self._start(listener, namesrv, settings, config, account)
        self.tell("opening the store")

    def _start(
        self, listener: socket.socket, namesrv: str, settings: Settings, config: Path | None, account: Path | None
    ) -> None:
        from penstock.console.access import make_token

        token = os.environ.get(TOKEN_VARIABLE, "") or make_token()
        address, port = listener.getsockname()[:2]
        order = [sys.executable, "-m", "penstock.cli.main", "console", "--under-serve", f"--namesrv={namesrv}"]
        order += [f"--listen={address}:{port}", f"--store={settings.store_path_root_dir}"]
        order.append(f"--exports={settings.store_path_root_dir.parent / 'exports'}")
        order += [] if config is None else [f"--config={config}"]
        order += [] if account is None else [f"--account={account}"]
        self._process = subprocess.Popen(
            order,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for the broker, which ends its console
            env={**os.environ, TOKEN_VARIABLE: token, LISTENER_VARIABLE: str(listener.fileno())},
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.link = link(address, port, token)

    def tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        """What the broker is doing before it serves; nothing, when it serves."""
        now = time.monotonic()
        if self._process is None or (phase and phase == self._told[0] and now - self._told[1] < _TELL_S):
            return
        self._told = phase, now
        assert self._process.stdin is not None
        line = json.dumps({"phase": phase, "done": done, "total": total}) + "\n"
        with contextlib.suppress(OSError):  # it is gone, or does not read: the broker has other things to do
            os.write(self._process.stdin.fileno(), line.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _name_server(settings: Settings, names: socket.socket | None) -> str:
    """Where the console finds the broker: at its own name server, or at others that it registers with."""
    if names is None:
        return ";".join(BrokerSettings.of(settings).name_servers)
    host, port = names.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why_not(settings: Settings, namesrv: str, account: Path | None) -> str:
    """Why there can be no console here, and what to do; empty if there can."""
    if not is_installed():
        return f"{HOW_TO_GET_IT}, or leave it out with --console off."
    if not namesrv:
        return "it finds the broker through a name server, and there is none."
    if BrokerSettings.of(settings).acl_enable and account is None:
        return "with aclEnable it needs an administrator's account, from --console-account FILE."
    if server_tls(settings.broker).mode is TlsMode.ENFORCING:
        return "with tls.server.mode=enforcing it must know whom to trust; start `penstock console --trust FILE`."
    return ""
