"""The broker as a whole, for administrators: how it runs (28), its figures (315), and cleaning up (306, 316, 329)."""

from __future__ import annotations

import asyncio
import time
from datetime import date
from typing import Final

from penstock import __version__
from penstock.broker.flow import UnflushedSends
from penstock.broker.hold import HeldPulls
from penstock.broker.rates import DayTotals, Figure, Rates
from penstock.broker.state import BrokerState
from penstock.protocol.bodies.lists import KVTable
from penstock.protocol.bodies.stats import BrokerStatsData, BrokerStatsItem
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.admin import ViewBrokerStats
from penstock.protocol.versions import CURRENT, version_name
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal

_GIB: Final = 1 << 30


class AdminRuntime:
    """Answers from the store's figures and the broker's own."""

    def __init__(self, state: BrokerState, rates: Rates, held: HeldPulls, unflushed: UnflushedSends) -> None:
        self._state = state
        self._rates = rates
        self._held = held
        self._unflushed = unflushed
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
        store, settings = self._state.store, self._state.settings.now
        figures, now = store.figures(), self._state.clock()
        put, got = figures.put_total, figures.got_messages
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
            **_idle_queues(held=len(self._held), unflushed=len(self._unflushed)),
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
            "putTps": _thrice(figures.put_per_second),
            "getTotalTps": _thrice(figures.get_per_second),
            "getTransferedTps": _thrice(figures.got_messages_per_second),
            "getFoundTps": _thrice(figures.get_per_second * _share(figures.get_found, figures.get_total)),
            "getMissTps": _thrice(figures.get_per_second * _share(figures.get_missed, figures.get_total)),
            "putMessageTimesTotal": put,
            "putMessageFailedTimes": figures.put_failed,
            "putMessageSizeTotal": figures.put_bytes,
            "putMessageAverageSize": figures.put_average_size,
            "putMessageEntireTimeMax": int(figures.put_slowest_ms),
            "putMessageDistributeTime": " ".join(
                f"[<={bound}ms]:{count}" for bound, count in figures.put_latency_ms.items()
            ),
            "getMessageTransferedMsgCount": got,
            "consumerNum": sum(len(group.clients) for group in self._state.clients.consumer_groups()),
            "topicNum": len(self._state.topics.all()),
            "groupNum": len(self._state.groups.all()),
            "putsRefused": figures.puts_refused.replace(str(store.layout.root), "the store"),
        }
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
        found = self._rates.find(header.stats_name, header.stats_key)
        if found is None:
            why = f"nothing was counted under {header.stats_name[:80]} for '{header.stats_key[:127]}'"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        minute, hour, day = (_item(figure) for figure in found)
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


def _idle_queues(*, held: int, unflushed: int) -> dict[str, object]:
    """RocketMQ's request queues. There are none here: a request is served when it is read."""
    table: dict[str, object] = {}
    for kind, size in (("send", unflushed), ("pull", held), ("query", 0), ("endTransaction", 0)):
        table[f"{kind}ThreadPoolQueueSize"] = size
        table[f"{kind}ThreadPoolQueueCapacity"] = 0
        table[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] = 0
    return table


def _item(figure: Figure) -> BrokerStatsItem:
    return BrokerStatsItem(sum=figure.total, tps=round(figure.per_second, 2), avgpt=1.0 if figure.total else 0.0)


def _thrice(per_second: float) -> str:
    """Java shows the rates of the last 10, 60 and 600 seconds; ours is that of the last minute."""
    return " ".join([f"{per_second:.2f}"] * 3)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _size(count: int) -> str:
    return f"{count} B"


def _duration(millis: int) -> str:
    days, seconds = divmod(max(0, millis) // 1000, 86_400)
    clock = time.gmtime(seconds)
    return f"[ {days} days, {clock.tm_hour} hours, {clock.tm_min} minutes, {clock.tm_sec} seconds ]"
