"""Who may do what.

Without access control (`aclEnable=false`) every client may send and consume, and administration is for callers on this
machine: `local_only`. It costs ordinary requests nothing.

With it, every request is signed by an account of the access file (`aclFile`), and the account has the right to it; see
`rights`. Callers on this machine are no exception. Addresses that the file names as white are not asked for more, as in
RocketMQ. The file is looked at once a second; one that cannot be used is said in the log and changes nothing. Refusals
are SYSTEM_ERROR with the reason, as a 4.x broker answers. No secret is ever logged or sent.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.broker.accounts import Account, Accounts
from penstock.broker.rights import LookUp, is_administration, needs
from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings, PenstockError
from penstock.format.record import Record
from penstock.namesrv.access import ADMINISTRATION as NAMESRV_ADMINISTRATION
from penstock.namesrv.access import LocalRule
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.signing import account_of, is_signed_with
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Before, Handler, Result
from penstock.remoting.seldom import Seldom

log = logging.getLogger("penstock.broker")

LOOK_EVERY_S: Final = 1.0

IsLocal = Callable[[Connection], bool]
"""Whether a caller is on this machine."""


def is_local(connection: Connection) -> bool:
    return connection.is_loopback


def local_only(handler: Handler, local: IsLocal) -> Handler:
    """The handler, for callers on this machine alone."""

    def guarded(connection: Connection, command: Command) -> Result:
        if local(connection):
            return handler(connection, command)
        why = f"administration is for callers on this machine, not {connection.peer[0]}; see aclEnable"
        return command.reply(ResponseCode.NO_PERMISSION, why)

    return guarded


class Access:
    """The accounts of one file, as a server's `before`."""

    def __init__(self, path: Path) -> None:
        """Raises BadSettings if the file cannot be used."""
        self._path = path
        self.accounts = Accounts.load(path)
        self._state = self._look()
        self.reads = 1
        """How often the accounts were taken over from the file."""
        self._nobody = secrets.token_hex()
        self._refusals = Seldom(log)
        self.administered_from: dict[str, float] = {}
        """Hosts from which an administrator's signed request came, and when, by the monotonic clock."""
        self.look_up: LookUp = _nothing
        """The broker's, once there is one."""
        self._warn_if_readable()

    @classmethod
    def of(cls, settings: BrokerSettings) -> Access | None:
        """As the settings want it; None if access is not controlled. Raises BadSettings."""
        if not settings.acl_enable:
            return None
        if settings.acl_file is None:
            raise BadSettings("aclEnable=true needs aclFile, the file with the accounts")
        return cls(settings.acl_file)

    # -- the file --------------------------------------------------------------------------------------------

    def reload_if_changed(self) -> None:
        """Takes the file over if it is another than before."""
        state = self._look()
        if state == self._state:
            return
        self._state = state
        try:
            self.accounts = Accounts.load(self._path)
        except BadSettings as error:
            log.error("the accounts stay as they were: %s", error)
            return
        self.reads += 1
        log.info("the access file was read again: %d accounts", len(self.accounts.by_key))
        self._warn_if_readable()

    @property
    def file_name(self) -> str:
        return self._path.name

    @property
    def changed_at_ms(self) -> int:
        """When the file was last written, as far as it was looked at; 0 if it is gone."""
        return 0 if self._state is None else self._state[0] // 1_000_000

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _warn_if_readable(self) -> None:
        if os.name == "posix" and self._path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            log.warning("%s holds secrets and other users of this machine can read it; make it mode 0600", self._path)

    # -- requests --------------------------------------------------------------------------------------------

    def __call__(self, connection: Connection, command: Command) -> Command | None:
        """The refusal of a request, None if it may go on."""
        try:
            why = self._refusal(connection, command)
        except PenstockError as error:
            why = str(error)
        if not why:
            return None
        self._refusals.warn(f"refused request {command.code} of {connection.peer[0]}: {why}")
        return command.reply(ResponseCode.SYSTEM_ERROR, why)

    def for_name_server(self, rule: LocalRule) -> Before:
        """The same for a name server: administrators have accounts; who may register is left to `rule`."""

        def before(connection: Connection, command: Command) -> Command | None:
            return self(connection, command) if command.code in NAMESRV_ADMINISTRATION else rule(connection, command)

        return before

    def _refusal(self, connection: Connection, command: Command) -> str:
        address = connection.peer[0]
        if self.accounts.is_white(address):
            return ""
        key = account_of(command)
        if key is None:
            return "this broker wants signed requests, and this one names no accessKey"
        account = self.accounts.by_key.get(key)
        if account is not None and account.is_white(address):
            return ""
        signed = is_signed_with(command, self._nobody if account is None else account.secret_key)
        if account is None or not signed:
            return f"there is no account '{key[:64]}', or its secretKey did not sign this request"
        connection.account = key
        missing = self._missing(account, command)
        if not missing and is_administration(command.code):
            self.administered_from[address] = time.monotonic()
        return missing

    def _missing(self, account: Account, command: Command) -> str:
        """Why an account may not do this; empty if it may."""
        if is_administration(command.code):
            if account.admin:
                return ""
            return f"request {_name(command.code)} is for administrators, and account '{account.access_key}' is none"
        for need in needs(command, self.look_up):
            if not account.may(need.rights, topic=need.topic, group=need.group):
                return f"account '{account.access_key}' has no right to this; it needs {need}"
        return ""


def _nothing(offset: int) -> Record | None:
    return None


def _name(code: int) -> str:
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return str(code)
