"""Access to a name server that has no access control: anyone may query, only this machine may administer.

Brokers, too, may register from loopback addresses only. The setting `registerBrokerFrom` allows brokers on other
machines. It is a security decision, because a registered broker receives clients' messages.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from penstock.errors import BadSettings
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection

ADMINISTRATION: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
    }
)
REGISTRATION: Final = frozenset(
    {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION}
)


class LocalRule:
    """The module's rule as the `before` hook of a server."""

    def __init__(self, register_from: str = "loopback") -> None:
        """`register_from` is `loopback`, `any`, or networks joined by `,`. Raises BadSettings."""
        self._networks = networks(register_from)

    def __call__(self, connection: Connection, command: Command) -> Command | None:
        if connection.is_loopback:
            return None
        if command.code in ADMINISTRATION:
            return command.reply(
                ResponseCode.NO_PERMISSION,
                f"administration is allowed from this machine only, not from {connection.peer[0]}",
            )
        if command.code in REGISTRATION and not self._may_register(connection.peer[0]):
            return command.reply(
                ResponseCode.NO_PERMISSION,
                f"brokers at {connection.peer[0]} may not register; set registerBrokerFrom to allow it",
            )
        return None

    def _may_register(self, host: str) -> bool:
        address = ipaddress.ip_address(host)
        return any(address in network for network in self._networks)


def networks(text: str, what: str = "registerBrokerFrom") -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Returns the networks in the value `text` of the setting `what`. Raises BadSettings.

    Loopback is always allowed, so it is not listed.
    """
    if text == "loopback":
        return []
    if text == "any":
        text = "0.0.0.0/0,::/0"
    try:
        return [ipaddress.ip_network(each.strip()) for each in text.split(",")]
    except ValueError as error:
        raise BadSettings(
            f"setting {what} is {text!r}; it must be loopback, any, or networks such as 10.0.0.0/8: {error}"
        ) from None
