"""The accounts of access control, for administrators: which version is in force (52), and what they may do (54).

They can be read, without their secrets, and not be changed: the access file is the one place for that, and it is read
again within a second. So 50, 51 and 53, which would carry secrets over the network, are refused with that sentence.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.broker.access import Access
from penstock.broker.accounts import Account, right_text
from penstock.broker.config_change import HIDDEN
from penstock.format.config_tables import DataVersion
from penstock.namesrv.route_table import Broker
from penstock.protocol.bodies.accounts import ClusterAclConfig, PlainAccessConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal

_READ_ONLY: Final = (
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
)


class AdminAccounts:
    """Shows what `access` has in force; None if access is not controlled."""

    def __init__(self, access: Access | None, broker: Broker) -> None:
        self._access = access
        self._broker = broker

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self._version,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self._accounts,
            **dict.fromkeys(_READ_ONLY, _refuse),
        }

    def _in_force(self) -> Access:
        if self._access is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "there are no accounts: access is not controlled (aclEnable)")
        return self._access

    def _version(self, connection: Connection, command: Command) -> Command:
        """Of the one file that there is; where it lies is nobody's business."""
        access = self._in_force()
        version = DataVersion(counter=access.reads, timestamp=access.changed_at_ms).to_json()
        told = {
            "version": msgspec.json.encode(version).decode(),
            "allAclFileVersion": msgspec.json.encode({access.file_name: version}).decode(),
            "brokerName": self._broker.name,
            "brokerAddr": self._broker.address,
            "clusterName": self._broker.cluster,
        }
        return command.reply(ResponseCode.SUCCESS, ext=told)

    def _accounts(self, connection: Connection, command: Command) -> Command:
        accounts = self._in_force().accounts
        found = ClusterAclConfig(
            global_white_addrs=list(accounts.white),
            plain_access_configs=[_shown(account) for account in accounts.by_key.values()],
        )
        return command.reply(ResponseCode.SUCCESS, body=found.to_bytes())


def _shown(account: Account) -> PlainAccessConfig:
    return PlainAccessConfig(
        access_key=account.access_key,
        secret_key=HIDDEN,
        white_remote_address=account.white,
        admin=account.admin,
        default_topic_perm=right_text(account.default_topic),
        default_group_perm=right_text(account.default_group),
        topic_perms=[f"{name}={right_text(right)}" for name, right in account.topics.items()],
        group_perms=[f"{name}={right_text(right)}" for name, right in account.groups.items()],
    )


def _refuse(connection: Connection, command: Command) -> Command:
    why = "accounts are changed in this broker's access file (aclFile), which is read again within a second"
    return command.reply(ResponseCode.SYSTEM_ERROR, why)
