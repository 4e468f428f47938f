"""The broker as a whole for administrators: runtime figures, cleanup, settings and accounts.

All settings can be shown, and the settings in CHANGEABLE can be changed. CHANGEABLE has no paths, addresses or names. A
change is applied as a whole or not at all, and lasts until the broker stops: broker.conf belongs to the
operator, and the broker does not rewrite it. The reply and the log say so.

Accounts can be read, without their secrets. They can be changed only in the access file, which is reloaded within a
second. So requests that would carry secrets over the network are refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import date
from typing import Final

import msgspec

from penstock import __version__
from penstock.broker.access import Access
from penstock.broker.accounts import Account, right_text
from penstock.broker.broker_state import BrokerState
from penstock.broker.core import Client, Operation, administration
from penstock.broker.long_polling import HeldPulls
from penstock.broker.send_acks import PendingAcks
from penstock.broker.settings import TABLE
from penstock.broker.stats import DayTotals, Figure, Rates
from penstock.config.properties import format_property, parse_properties
from penstock.errors import BadRequest, BadSettings
from penstock.format.config_tables import DataVersion
from penstock.namesrv.route_table import RegisteredBroker
from penstock.protocol.bodies.admin import ClusterAclConfig, KVTable, PlainAccessConfig
from penstock.protocol.bodies.stats import COUNTERS_KEY, BrokerStatsData, BrokerStatsItem
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.admin import AclVersionReply, BrokerConfigReply, GetBrokerRuntimeInfo, ViewBrokerStats
from penstock.protocol.versions import CURRENT, version_name
from penstock.store.settings import TABLE as STORE_TABLE

log = logging.getLogger("penstock.broker")

_GIB: Final = 1 << 30


class AdminRuntime:
    """Runtime figures of the store and the broker, and cleanup."""

    def __init__(self, state: BrokerState, rates: Rates, held: HeldPulls, acks: PendingAcks) -> None:
        self._state = state
        self._rates = rates
        self._held = held
        self._acks = acks
        self.days = DayTotals(self._put_and_got, date.today)

    def operations(self) -> tuple[Operation, ...]:
        return (
            administration("runtime info", self.runtime_info, for_slaves=True),
            administration("broker stats", self.stats),
            administration("clean queues", self.clean_queues),
            administration("clean topics", self.clean_topics),
            administration("delete expired", self.delete_expired),
        )

    # -- figures ---------------------------------------------------------------------------------------------

    def _put_and_got(self) -> tuple[int, int]:
        figures = self._state.store.figures()
        return figures.put_total, figures.got_messages

    async def runtime_info(self, client: Client, request: GetBrokerRuntimeInfo) -> KVTable:
        """Returns RocketMQ's figures, and some of Penstock's own, which other tools ignore."""
        store, settings = self._state.store, self._state.settings.now
        earliest = await asyncio.wrap_future(store.read_cold(store.earliest_time, client))
        figures, now = store.figures(), self._state.clock()
        put, got, root = figures.put_total, figures.got_messages, str(store.layout.root)
        disk = figures.retention.disk if figures.retention is not None else []
        table: dict[str, object] = {
            "brokerVersionDesc": version_name(CURRENT),
            "brokerVersion": CURRENT,
            "penstockVersion": __version__,
            "msgPutTotalYesterdayMorning": self.days.yesterday_morning[0],
            "msgPutTotalTodayMorning": self.days.today_morning[0],
            "msgPutTotalTodayNow": put,
            "msgGetTotalYesterdayMorning": self.days.yesterday_morning[1],
            "msgGetTotalTodayMorning": self.days.today_morning[1],
            "msgGetTotalTodayNow": got,
            **_request_queues(held=len(self._held), acks=len(self._acks)),
            "dispatchBehindBytes": figures.dispatch_behind_bytes,
            "remainHowManyDataToFlush": _size(figures.flush_behind_bytes),
            "remainHowManyDataToCommit": _size(0),
            "pageCacheLockTimeMills": int(figures.put_lock_held_ms),
            "earliestMessageTimeStamp": earliest,
            "startAcceptSendRequestTimeStamp": settings.start_accept_send_request_time_stamp,
            "commitLogMinOffset": max(0, store.log.min_offset),
            "commitLogMaxOffset": store.log.max_offset,
            "bootTimestamp": figures.started_ms,
            "runtime": _duration(now - figures.started_ms),
            "putTps": _rates_text(figures.put_per_second),
            "getTotalTps": _rates_text(figures.get_per_second),
            "getTransferedTps": _rates_text(figures.got_messages_per_second),
            "getFoundTps": _rates_text(figures.get_per_second * _share(figures.get_found, figures.get_total)),
            "getMissTps": _rates_text(figures.get_per_second * _share(figures.get_missed, figures.get_total)),
            "putMessageTimesTotal": put,
            "putMessageFailedTimes": figures.put_failed,
            "putMessageSizeTotal": figures.put_bytes,
            "putMessageAverageSize": figures.put_average_size,
            "putMessageEntireTimeMax": int(figures.put_slowest_ms),
            "putMessageDistributeTime": _latencies(figures.put_latency_ms),
            "putMessageSeconds": figures.put_seconds,
            "getMessageTransferedMsgCount": got,
            "getMessageSizeTotal": figures.got_bytes,
            "getMessageDistributeTime": _latencies(figures.get_latency_ms),
            "getMessageSeconds": figures.get_seconds,
            "consumerNum": sum(len(group.clients) for group in self._state.clients.consumer_groups()),
            "topicNum": len(self._state.topics.all()),
            "groupNum": len(self._state.groups.all()),
            "putsRefused": figures.puts_refused.replace(root, "the store"),
            "brokerHealth": "; ".join(self._state.health().reasons).replace(root, "the store") or "ok",
        }
        if request.penstock_counters:
            table[COUNTERS_KEY] = self._state.counters.totals().to_bytes().decode()
        if disk:
            total = (disk[0].used_bytes + disk[0].free_bytes) / _GIB
            table["commitLogDiskRatio"] = disk[0].used_ratio
            table["consumeQueueDiskRatio"] = disk[-1].used_ratio
            table["commitLogDirCapacity"] = f"Total : {total:.1f} GiB, Free : {disk[0].free_bytes / _GIB:.1f} GiB."
        for level, (done, end) in self._state.delayed.progress().items():
            table[f"scheduleMessageOffset_{level}"] = f"{done},{end}"
        return KVTable(table={name: str(value) for name, value in table.items()})

    def stats(self, client: Client, request: ViewBrokerStats) -> BrokerStatsData:
        figures = self._rates.find(request.stats_name, request.stats_key)
        if figures is None:
            why = f"nothing was counted under {request.stats_name[:80]} for '{request.stats_key[:127]}'"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        minute, hour, day = (_item(figure) for figure in figures)
        return BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)

    # -- cleaning up -----------------------------------------------------------------------------------------

    async def clean_queues(self, client: Client) -> None:
        await asyncio.to_thread(self._state.store.clean_expired_queues)

    async def clean_topics(self, client: Client) -> None:
        await asyncio.to_thread(self._state.store.clean_unused_topics, list(self._state.topics.all()))

    def delete_expired(self, client: Client) -> None:
        self._state.store.delete_expired()


def _request_queues(*, held: int, acks: int) -> dict[str, object]:
    """Returns RocketMQ's figures of request queues, filled with the numbers of pending acks and held pulls.

    Penstock has no request queues, because it serves a request when it reads it.
    """
    table: dict[str, object] = {}
    for kind, size in (("send", acks), ("pull", held), ("query", 0), ("endTransaction", 0)):
        table[f"{kind}ThreadPoolQueueSize"] = size
        table[f"{kind}ThreadPoolQueueCapacity"] = 0
        table[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] = 0
    return table


def _item(figure: Figure) -> BrokerStatsItem:
    return BrokerStatsItem(sum=figure.total, tps=round(figure.per_second, 2), avgpt=1.0 if figure.total else 0.0)


def _rates_text(per_second: float) -> str:
    """Returns the rate of the last minute three times, where Java shows the rates over 10, 60 and 600 seconds."""
    return " ".join([f"{per_second:.2f}"] * 3)


def _latencies(counts: dict[str, int]) -> str:
    """Returns the counts by latency class as RocketMQ writes them: `[<=1ms]:5 [<=2ms]:0 [2ms~]:0`."""
    *bounds, _ = counts
    classes = [*(f"<={bound}ms" for bound in bounds), f"{bounds[-1]}ms~"]
    return " ".join(f"[{each}]:{count}" for each, count in zip(classes, counts.values(), strict=True))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _size(count: int) -> str:
    return f"{count} B"


def _duration(millis: int) -> str:
    days, seconds = divmod(max(0, millis) // 1000, 86_400)
    clock = time.gmtime(seconds)
    return f"[ {days} days, {clock.tm_hour} hours, {clock.tm_min} minutes, {clock.tm_sec} seconds ]"


# -- settings ------------------------------------------------------------------------------------------------

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
    """Shows and changes settings."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._version = DataVersion()

    def operations(self) -> tuple[Operation, ...]:
        return administration("change settings", self.change), administration("show settings", self.show)

    def change(self, client: Client, properties: bytes) -> str:
        """Changes settings, given as the text of a properties file. Returns how long they are in force."""
        try:
            changed = {entry.name: entry.value for entry in parse_properties(properties)}
        except ValueError as error:
            raise BadRequest(f"the settings cannot be read: {error}") from None
        if not changed:
            raise BadRequest("no setting given; write name=value")
        for name in changed:
            if name not in CHANGEABLE:
                why = f"{name[:127]} cannot be changed while the broker runs; change broker.conf and restart it"
                raise Refusal(ResponseCode.NO_PERMISSION, why)
        try:
            self._state.settings.change(**TABLE.parse(changed))
        except BadSettings as error:
            raise BadRequest(str(error)) from None
        self._version = self._version.next(self._state.clock())
        changes = ", ".join(f"{name}={value}" for name, value in changed.items())
        log.warning("settings changed until the broker stops: %s by=%s:%d", changes, *client.peer)
        return "in force until the broker stops; broker.conf is unchanged"

    def show(self, client: Client) -> tuple[BrokerConfigReply, bytes]:
        text = "".join(f"{format_property(name, value)}\n" for name, value in self._all().items())
        version = msgspec.json.encode(self._version.to_json()).decode()
        return BrokerConfigReply(version=version), text.encode()

    def _all(self) -> dict[str, str]:
        """Returns every setting of the broker and the store as text, by name. Secrets are hidden."""
        now, store = self._state.settings.now, self._state.store.settings
        texts = TABLE.texts(now) | STORE_TABLE.texts(store)
        texts |= {name: text for name, text in store.broker.items() if name.startswith("tls.server.")}
        return {name: HIDDEN if _is_secret(name) and value else value for name, value in sorted(texts.items())}


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET_WORDS)


# -- accounts ------------------------------------------------------------------------------------------------


class AdminAccounts:
    """Shows the accounts of `access`, which is None if access control is off."""

    def __init__(self, access: Access | None, broker: RegisteredBroker) -> None:
        self._access = access
        self._broker = broker

    def operations(self) -> tuple[Operation, ...]:
        return (
            administration("accounts version", self.version),
            administration("all accounts", self.all_accounts),
            administration("change accounts", self.change),
        )

    def _require_access(self) -> Access:
        if self._access is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "no accounts: access control is off (aclEnable)")
        return self._access

    def version(self, client: Client) -> AclVersionReply:
        """Returns the version of the access file, and its name without the path."""
        access = self._require_access()
        version = DataVersion(counter=access.reads, timestamp=access.changed_at_ms).to_json()
        return AclVersionReply(
            version=msgspec.json.encode(version).decode(),
            all_acl_file_version=msgspec.json.encode({access.file_name: version}).decode(),
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

    def change(self, client: Client) -> None:
        why = "change accounts in this broker's access file (aclFile), which is reloaded within a second"
        raise Refusal(ResponseCode.SYSTEM_ERROR, why)


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
