"""The broker as a whole for administrators: runtime figures, cleanup, settings and accounts.

Request codes: runtime figures 28 and 315; cleanup 306, 316 and 329; settings 25 and 26; accounts 50 to 54.

Settings can be shown (26), and the settings in CHANGEABLE can be changed (25). CHANGEABLE has no paths, addresses or
names. A change is applied as a whole or not at all, and lasts until the broker stops: broker.conf belongs to the
operator, and the broker does not rewrite it. The reply and the log say so.

Accounts can be read, without their secrets (52, 54). They can be changed only in the access file, which is reloaded
within a second. So requests 50, 51 and 53, which would carry secrets over the network, are refused.
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
from penstock.broker.long_polling import HeldPulls
from penstock.broker.send_acks import PendingAcks
from penstock.broker.settings import TABLE
from penstock.broker.stats import DayTotals, Figure, Rates
from penstock.config.properties import format_property, parse_properties
from penstock.errors import BadRequest, BadSettings
from penstock.format.config_tables import DataVersion
from penstock.namesrv.route_table import RegisteredBroker
from penstock.protocol import fields
from penstock.protocol.bodies.admin import ClusterAclConfig, KVTable, PlainAccessConfig
from penstock.protocol.bodies.stats import COUNTERS_KEY, BrokerStatsData, BrokerStatsItem
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.admin import BrokerConfigReply, GetBrokerRuntimeInfo, ViewBrokerStats
from penstock.protocol.versions import CURRENT, version_name
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal
from penstock.remoting.tls import SERVER_NAMES
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

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
            RequestCode.VIEW_BROKER_STATS_DATA: self._stats,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self._clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self._clean_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._delete_expired,
        }

    # -- figures ---------------------------------------------------------------------------------------------

    def _put_and_got(self) -> tuple[int, int]:
        figures = self._state.store.figures()
        return figures.put_total, figures.got_messages

    def _runtime(self, connection: Connection, command: Command) -> Command:
        """Replies with RocketMQ's figures, and with some of Penstock's own, which other tools ignore."""
        store, settings = self._state.store, self._state.settings.now
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
            "earliestMessageTimeStamp": store.earliest_time(),
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
        if command.read(GetBrokerRuntimeInfo).penstock_counters:
            table[COUNTERS_KEY] = self._state.counters.totals().to_bytes().decode()
        if disk:
            total = (disk[0].used_bytes + disk[0].free_bytes) / _GIB
            table["commitLogDiskRatio"] = disk[0].used_ratio
            table["consumeQueueDiskRatio"] = disk[-1].used_ratio
            table["commitLogDirCapacity"] = f"Total : {total:.1f} GiB, Free : {disk[0].free_bytes / _GIB:.1f} GiB."
        for level, (done, end) in self._state.delayed.progress().items():
            table[f"scheduleMessageOffset_{level}"] = f"{done},{end}"
        text = {name: str(value) for name, value in table.items()}
        return command.reply(ResponseCode.SUCCESS, body=KVTable(table=text).to_bytes())

    def _stats(self, connection: Connection, command: Command) -> Command:
        header = command.read(ViewBrokerStats)
        figures = self._rates.find(header.stats_name, header.stats_key)
        if figures is None:
            why = f"nothing was counted under {header.stats_name[:80]} for '{header.stats_key[:127]}'"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        minute, hour, day = (_item(figure) for figure in figures)
        body = BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())

    # -- cleaning up -----------------------------------------------------------------------------------------

    async def _clean_queues(self, connection: Connection, command: Command) -> Command:
        await asyncio.to_thread(self._state.store.clean_expired_queues)
        return command.reply(ResponseCode.SUCCESS)

    async def _clean_topics(self, connection: Connection, command: Command) -> Command:
        await asyncio.to_thread(self._state.store.clean_unused_topics, list(self._state.topics.all()))
        return command.reply(ResponseCode.SUCCESS)

    def _delete_expired(self, connection: Connection, command: Command) -> Command:
        self._state.store.delete_expired()
        return command.reply(ResponseCode.SUCCESS)


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

    def handlers(self) -> dict[RequestCode, Handler]:
        return {RequestCode.UPDATE_BROKER_CONFIG: self._change, RequestCode.GET_BROKER_CONFIG: self._show}

    def _change(self, connection: Connection, command: Command) -> Command:
        try:
            changed = {entry.name: entry.value for entry in parse_properties(bytes(command.body))}
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
        log.warning("settings changed until the broker stops: %s by=%s:%d", changes, *connection.peer)
        return command.reply(ResponseCode.SUCCESS, "in force until the broker stops; broker.conf is unchanged")

    def _show(self, connection: Connection, command: Command) -> Command:
        text = "".join(f"{format_property(name, value)}\n" for name, value in self._all().items())
        version = msgspec.json.encode(self._version.to_json()).decode()
        return command.reply(
            ResponseCode.SUCCESS, ext=fields.write(BrokerConfigReply(version=version)), body=text.encode()
        )

    def _all(self) -> dict[str, str]:
        """Returns every setting of the broker and the store as text, by name. Secrets are hidden."""
        now, store = self._state.settings.now, self._state.store.settings
        texts = TABLE.texts(now) | STORE_TABLE.texts(store)
        texts |= {name: text for name, text in store.broker.items() if name in SERVER_NAMES}
        return {name: HIDDEN if _is_secret(name) and value else value for name, value in sorted(texts.items())}


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET_WORDS)


# -- accounts ------------------------------------------------------------------------------------------------

_READ_ONLY: Final = (
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
)


class AdminAccounts:
    """Shows the accounts of `access`, which is None if access control is off."""

    def __init__(self, access: Access | None, broker: RegisteredBroker) -> None:
        self._access = access
        self._broker = broker

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self._version,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self._accounts,
            **dict.fromkeys(_READ_ONLY, _refuse),
        }

    def _require_access(self) -> Access:
        if self._access is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "no accounts: access control is off (aclEnable)")
        return self._access

    def _version(self, connection: Connection, command: Command) -> Command:
        """Replies with the version of the access file, and its name without the path."""
        access = self._require_access()
        version = DataVersion(counter=access.reads, timestamp=access.changed_at_ms).to_json()
        ext = {
            "version": msgspec.json.encode(version).decode(),
            "allAclFileVersion": msgspec.json.encode({access.file_name: version}).decode(),
            "brokerName": self._broker.name,
            "brokerAddr": self._broker.address,
            "clusterName": self._broker.cluster,
        }
        return command.reply(ResponseCode.SUCCESS, ext=ext)

    def _accounts(self, connection: Connection, command: Command) -> Command:
        accounts = self._require_access().accounts
        config = ClusterAclConfig(
            global_white_addrs=list(accounts.white),
            plain_access_configs=[_account_body(account) for account in accounts.by_key.values()],
        )
        return command.reply(ResponseCode.SUCCESS, body=config.to_bytes())


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


def _refuse(connection: Connection, command: Command) -> Command:
    why = "change accounts in this broker's access file (aclFile), which is reloaded within a second"
    return command.reply(ResponseCode.SYSTEM_ERROR, why)
