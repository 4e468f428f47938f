"""The broker's settings over the network: shown (26), and a few of them changed (25).

Only what is on the list below can be changed: nothing that is a path, an address, a name or a right. A change is taken
whole or not at all, and counts until the broker stops: broker.conf is the operator's and is not rewritten, so that what
should last is to be written there too. The answer and the log say so.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from penstock.broker.settings import TABLE
from penstock.broker.state import BrokerState
from penstock.config.properties import format_property, parse_properties
from penstock.errors import BadRequest, BadSettings
from penstock.format.config_tables import DataVersion
from penstock.protocol import fields
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.admin import BrokerConfigReply
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal
from penstock.remoting.tls import SERVER_NAMES
from penstock.store.settings import TABLE as STORE_TABLE

log = logging.getLogger("penstock.broker")

CHANGEABLE: Final = (
    "autoCreateSubscriptionGroup",
    "autoCreateTopicEnable",
    "brokerPermission",
    "compressedRegister",
    "enablePropertyFilter",
    "longPollingEnable",
    "maxGroups",
    "maxHeldPulls",
    "maxTopics",
    "maxUnflushedSends",
    "notifyConsumerIdsChangedEnable",
    "registerBrokerTimeoutMills",
    "registerNameServerPeriod",
    "rejectTransactionMessage",
    "shortPollingTimeMills",
    "startAcceptSendRequestTimeStamp",
    "storeReplyMessageEnable",
    "traceOn",
    "transactionCheckInterval",
    "transactionCheckMax",
    "transactionTimeOut",
)
HIDDEN: Final = "******"
_SECRET_WORDS: Final = ("password", "secret")


class ConfigChange:
    """Answers 25 and 26."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._version = DataVersion()

    def handlers(self) -> dict[RequestCode, Handler]:
        return {RequestCode.UPDATE_BROKER_CONFIG: self._change, RequestCode.GET_BROKER_CONFIG: self._show}

    def _change(self, connection: Connection, command: Command) -> Command:
        try:
            asked = {entry.name: entry.value for entry in parse_properties(bytes(command.body))}
        except ValueError as error:
            raise BadRequest(f"the settings cannot be read: {error}") from None
        if not asked:
            raise BadRequest("no setting is named; write name=value")
        for name in asked:
            if name not in CHANGEABLE:
                why = f"{name[:127]} cannot be changed while the broker runs; change broker.conf and start it again"
                raise Refusal(ResponseCode.NO_PERMISSION, why)
        try:
            self._state.settings.change(**TABLE.parse(asked))
        except BadSettings as error:
            raise BadRequest(str(error)) from None
        self._version = self._version.next(self._state.clock())
        told = ", ".join(f"{name}={value}" for name, value in asked.items())
        log.warning("%s changed until the broker stops, by %s:%d", told, *connection.peer)
        return command.reply(ResponseCode.SUCCESS, "in force until the broker stops; broker.conf is as it was")

    def _show(self, connection: Connection, command: Command) -> Command:
        text = "".join(f"{format_property(name, value)}\n" for name, value in self._all().items())
        version = msgspec.json.encode(self._version.to_json()).decode()
        return command.reply(
            ResponseCode.SUCCESS, ext=fields.write(BrokerConfigReply(version=version)), body=text.encode()
        )

    def _all(self) -> dict[str, str]:
        """Every setting of broker and store by its name."""
        now, store = self._state.settings.now, self._state.store.settings
        found = TABLE.texts(now) | STORE_TABLE.texts(store)
        found |= {name: text for name, text in store.broker.items() if name in SERVER_NAMES}
        return {name: HIDDEN if _is_secret(name) and value else value for name, value in sorted(found.items())}


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET_WORDS)
