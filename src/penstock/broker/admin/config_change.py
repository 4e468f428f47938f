"""Settings for administrators: all are shown, and those in CHANGEABLE can be changed while the broker runs.

CHANGEABLE has no paths, addresses or names. A change is checked as at a start. It is applied as a whole or not at all,
takes effect at once, and lasts until the broker stops: broker.conf belongs to the operator, and the broker does not
rewrite it. The reply and the log say so.

What is shown has the names that RocketMQ's tools read, even where a setting has no effect here. A setting that is
derived when it is unset is shown with its derived value. No secret is shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.broker.operations_as_plain_calls import Client, Operation, administration
from penstock.broker.settings import TABLE
from penstock.broker.table_persistence import BrokerState
from penstock.config.ignored_settings import IGNORED
from penstock.config.java_properties import format_property, parse_properties
from penstock.errors import BadRequest, BadSettings
from penstock.format.config_tables import DataVersion
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.admin import BrokerConfigReply
from penstock.store.settings import LIVE
from penstock.store.settings import TABLE as STORE_TABLE

CHANGEABLE: Final = (
    "autoCreateSubscriptionGroup",
    "autoCreateTopicEnable",
    "brokerPermission",
    "compressedRegister",
    "defaultTopicQueueNums",
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
    "slaveReadEnable",
    "startAcceptSendRequestTimeStamp",
    "storeReplyMessageEnable",
    "traceOn",
    "traceTopicEnable",
    "transactionCheckInterval",
    "transactionCheckMax",
    "transactionTimeOut",
    *(STORE_TABLE[attribute].name for attribute in LIVE),
)
HIDDEN: Final = "******"
_SECRET_WORDS: Final = ("password", "secret")
_COMMANDS: Final = ("onMaster", "onSlave")
"""Settings whose value is a command, which may have a password among its words."""
_NAME_LENGTH: Final = 127
"""Characters of an unknown name that an answer repeats."""


class ConfigChange:
    """Shows and changes settings."""

    def __init__(self, state: BrokerState, derived: Mapping[str, str], max_message_size: int) -> None:
        """`derived` are texts to show, by name, in place of the values in the settings.

        A change of maxMessageSize may go up to `max_message_size`: the size of frames is fixed when the broker starts.
        """
        self._state = state
        self._derived = derived
        self._version = DataVersion()
        self._max_message_size = max_message_size

    def operations(self) -> tuple[Operation, ...]:
        return administration("change settings", self.change, changes=True), administration("show settings", self.show)

    # -- changing --------------------------------------------------------------------------------------------

    def change(self, client: Client, properties: bytes) -> str:
        """Changes settings, given as the text of a properties file. Returns how long they are in force."""
        try:
            changed = {entry.name: entry.value for entry in parse_properties(properties)}
        except ValueError as error:
            raise BadRequest(f"the settings cannot be read: {error}") from None
        if not changed:
            raise BadRequest("no setting given; write name=value")
        for name in changed:
            self._check_changeable(name)
        try:
            self._apply(changed)
        except BadSettings as error:
            raise BadRequest(str(error)) from None
        self._version = self._version.next(self._state.clock())
        return "in force until the broker stops; broker.conf is unchanged"

    def _check_changeable(self, name: str) -> None:
        """Raises BadRequest for an unknown setting, and Refusal for one that cannot be changed."""
        if name in CHANGEABLE:
            return
        if not STORE_TABLE.knows(name):
            raise BadRequest(str(STORE_TABLE.unknown(name[:_NAME_LENGTH])))
        why = f"{name} cannot be changed while the broker runs; change broker.conf and restart it"
        raise Refusal(ResponseCode.NO_PERMISSION, why)

    def _apply(self, changed: Mapping[str, str]) -> None:
        """Checks all values, then applies all. Raises BadSettings before anything has changed."""
        store, settings = self._state.store, self._state.settings
        of_broker, of_store = TABLE.parse(changed), STORE_TABLE.parse(changed)
        settings.now.with_changes(**of_broker)
        size = store.settings.with_live_changes(**of_store).max_message_size
        if size > self._max_message_size:
            allowed = f"while the broker runs it must be at most {self._max_message_size}; restart the broker for more"
            raise STORE_TABLE["max_message_size"].wrong(size, allowed)
        if of_store:
            store.change_settings(**of_store)
        if of_broker:
            settings.change(**of_broker)

    # -- showing ---------------------------------------------------------------------------------------------

    def show(self, client: Client) -> tuple[BrokerConfigReply, bytes]:
        text = "".join(f"{format_property(name, value)}\n" for name, value in self._all().items())
        version = msgspec.json.encode(self._version.to_json()).decode()
        return BrokerConfigReply(version=version), text.encode()

    def _all(self) -> dict[str, str]:
        """Returns every setting of the broker and the store as text, by name. Secrets are hidden."""
        now, store = self._state.settings.now, self._state.store.settings
        texts = {"clientCallbackExecutorThreads": str(os.cpu_count() or 1), "filterServerNums": "0"}
        texts |= {name: text for name, text in store.broker.items() if name in IGNORED}
        texts |= TABLE.texts(now) | STORE_TABLE.texts(store)
        texts |= {name: text for name, text in store.broker.items() if name.startswith("tls.server.")}
        texts |= {"storePathCommitLog": str(store.commit_log_dir), **self._derived}
        return {name: HIDDEN if _is_secret(name) and value else value for name, value in sorted(texts.items())}


def _is_secret(name: str) -> bool:
    return name in _COMMANDS or any(word in name.lower() for word in _SECRET_WORDS)
