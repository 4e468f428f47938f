"""The accounts of the access file for administrators: shown without their secrets, and changed if that is allowed.

Requests 50, 51 and 53 carry secrets over the network, so they are refused unless the setting aclChangeEnable is true.
Then each of them changes the access file atomically, and is in force when it is answered. Who may do it is an
administrator, as for all administration.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from penstock.broker.access import Access
from penstock.broker.access_file import (
    Account,
    Change,
    change_access_file,
    delete_account,
    right_text,
    set_account,
    set_white_addresses,
)
from penstock.broker.admin.config_change import HIDDEN
from penstock.broker.operations_as_plain_calls import Client, Operation, administration
from penstock.broker.settings import SettingsInForce
from penstock.errors import BadRequest, BadSettings
from penstock.format.config_tables import DataVersion
from penstock.namesrv.route_table import RegisteredBroker
from penstock.protocol.bodies.admin import ClusterAclConfig, PlainAccessConfig
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.admin import AccessKey, AclVersionReply, UpdateAccount, UpdateGlobalAddresses

_TEXTS: Final = ("secret_key", "white_remote_address", "default_topic_perm", "default_group_perm")
_LISTS: Final = ("topic_perms", "group_perms")


class AdminAccounts:
    """Shows and changes the accounts of `access`, which is None if access control is off."""

    def __init__(self, access: Access | None, broker: RegisteredBroker, settings: SettingsInForce) -> None:
        self._access = access
        self._broker = broker
        self._settings = settings
        self._changes = asyncio.Lock()
        """Held while the file is changed: one change at a time."""

    def operations(self) -> tuple[Operation, ...]:
        return (
            administration("accounts version", self.version),
            administration("all accounts", self.all_accounts),
            administration("update account", self.update, changes=True),
            administration("delete account", self.delete, changes=True),
            administration("white addresses", self.set_addresses, changes=True),
        )

    def _require_access(self) -> Access:
        if self._access is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "no accounts: access control is off (aclEnable)")
        return self._access

    # -- showing ---------------------------------------------------------------------------------------------

    def version(self, client: Client) -> AclVersionReply:
        """Returns the version of the access file, and its path."""
        access = self._require_access()
        version = DataVersion(counter=access.reads, timestamp=access.changed_at_ms).to_json()
        return AclVersionReply(
            version=msgspec.json.encode(version).decode(),
            all_acl_file_version=msgspec.json.encode({str(access.path): version}).decode(),
            broker_name=self._broker.name,
            broker_addr=self._broker.address,
            cluster_name=self._broker.cluster,
        )

    def all_accounts(self, client: Client) -> ClusterAclConfig:
        accounts = self._require_access().accounts
        return ClusterAclConfig(
            global_white_addrs=list(accounts.white),
            plain_access_configs=[_account_body(account) for account in accounts.by_key.values()],
        )

    # -- changing --------------------------------------------------------------------------------------------

    async def update(self, client: Client, request: UpdateAccount) -> None:
        """Creates or changes an account."""
        if not request.access_key:
            raise BadRequest("no accessKey given")
        change = set_account(request.access_key, _given(request))
        await self._change(change)

    async def delete(self, client: Client, request: AccessKey) -> None:
        await self._change(delete_account(request.access_key))

    async def set_addresses(self, client: Client, request: UpdateGlobalAddresses) -> None:
        """Replaces the global white addresses."""
        await self._change(set_white_addresses(request.global_white_addrs))

    async def _change(self, change: Change) -> None:
        access = self._require_access()
        if not self._settings.now.acl_change_enable:
            why = (
                "accounts are not changed over the network (aclChangeEnable); change them in this broker's access file"
            )
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{why} (aclFile), which is reloaded within a second")
        try:
            async with self._changes:
                await asyncio.to_thread(change_access_file, access.path, change)
        except BadSettings as error:
            raise BadRequest(str(error)) from None
        access.reload_if_changed()


def _given(request: UpdateAccount) -> dict[str, Any]:
    """Returns what a request says about an account, by the names in the access file; nothing for an empty text."""
    names = {field.name: field.encode_name for field in msgspec.structs.fields(request)}
    texts = {attribute: getattr(request, attribute) for attribute in (*_TEXTS, *_LISTS)}
    given: dict[str, Any] = {}
    for attribute, text in texts.items():
        if text:
            given[names[attribute]] = text.split(",") if attribute in _LISTS else text
    if request.admin is not None:
        given["admin"] = request.admin
    return given


def _account_body(account: Account) -> PlainAccessConfig:
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
