"""Signatures of remoting requests: who sent a request, with access control.

A `Signatures` is the `before` hook of a broker's server. It sets the connection's account for the operation's rights,
which the core checks. A request that is not signed as it must be is refused before anything of it is read. So is one
that its client has sealed, as Penstock's own do, if it is another request than was signed, or was here before.
"""

from __future__ import annotations

from penstock.broker.access import Access
from penstock.namesrv.access import ADMINISTRATION, LocalRule
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.signing import account_of, is_signed_with, seal_of
from penstock.remoting.connection import Connection
from penstock.remoting.handler_types_and_errors import Before


class Signatures:
    """Checks the signature of every request against the accounts of `access`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def __call__(self, connection: Connection, command: Command) -> None:
        """Sets the connection's account. Raises Denied, or BadRequest for malformed arguments."""
        connection.account = None
        if self._access.accounts.is_white(connection.peer[0]):
            return
        key = account_of(command)
        account = self._access.account(connection, key)
        if account is not None and not is_signed_with(command, account.secret_key):
            why = f"no account '{str(key)[:64]}', or its secretKey did not sign this request"
            self._access.refuse(connection, f"request {command.code}", why)
        seal = None if account is None else seal_of(command)
        if seal is not None:
            why = "it was signed as another request"
            if seal.code == command.code:
                why = self._access.replays.refusal(str(key), seal.session, seal.number, seal.time_ms)
            if why:
                self._access.refuse(connection, f"request {command.code}", why)
        connection.account = key

    def for_name_server(self, rule: LocalRule) -> Before:
        """Returns a name server's `before` hook: administration needs an account; `rule` checks all other requests."""

        def before(connection: Connection, command: Command) -> Command | None:
            if command.code not in ADMINISTRATION:
                return rule(connection, command)
            self(connection, command)
            name = f"request {RequestCode(command.code).name} ({command.code})"
            self._access.check_administrator(connection, name)
            return None

        return before
