"""The broker as a whole for administrators: runtime figures, counters and cleanup.

The figures of request 28 have RocketMQ's names and formats, because its tools and rocketmq-exporter parse them and fail
if one is missing or looks different. Figures with other names are Penstock's own, which those tools ignore.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Final

from penstock import __version__
from penstock.broker.long_polling import HeldPulls
from penstock.broker.operations_as_plain_calls import Client, Operation, administration
from penstock.broker.replication.handshake import RUNTIME_KEY
from penstock.broker.replication.handshake import VERSION as HANDSHAKE_VERSION
from penstock.broker.send_acks import PendingAcks
from penstock.broker.settings import BrokerSettings
from penstock.broker.stats import SAMPLE_S, DayTotals, Figure, Rates
from penstock.broker.table_persistence import BrokerState
from penstock.protocol.bodies.admin import KVTable
from penstock.protocol.bodies.stats import COUNTERS_KEY, PUT_LATENCIES_KEY, BrokerStatsData, BrokerStatsItem
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.admin import GetBrokerRuntimeInfo, ViewBrokerStats
from penstock.protocol.versions import CURRENT, version_name
from penstock.store.put_and_get_statistics import LATENCY_BOUNDS_MS, DiskFigures

_GIB: Final = 1 << 30
_MINUTE_S: Final = 60
_MORE: Final = "more"
"""The store's class of the latencies above all bounds."""
_UNMEASURED: Final = DiskFigures(path="", used_bytes=0, free_bytes=0, used_ratio=0.0, level="")
"""What is shown of a disk that cannot be measured."""
_MAX_DEFERRED: Final = 4096
"""Unanswered requests of one connection that the broker accepts; see `remoting.limits`."""


class AdminRuntime:
    """Runtime figures of the store and the broker, and cleanup."""

    def __init__(self, state: BrokerState, rates: Rates, held: HeldPulls, acks: PendingAcks) -> None:
        self._state = state
        self._rates = rates
        self._held = held
        self._acks = acks
        self.days = DayTotals(self._put_and_got, date.today)
        self._minute = MinuteOfLatencies()

    def operations(self) -> tuple[Operation, ...]:
        return (
            administration("runtime info", self.runtime_info, for_slaves=True),
            administration("broker stats", self.stats),
            administration("clean queues", self.clean_queues, changes=True),
            administration("clean topics", self.clean_topics, changes=True),
            administration("delete expired", self.delete_expired, changes=True),
        )

    # -- figures ---------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Begins a new day or minute if the last one is over. Call it every `stats.SAMPLE_S` seconds."""
        self.days.roll()
        self._minute.sample(self._state.store.figures().put_latency_ms)

    def _put_and_got(self) -> tuple[int, int]:
        figures = self._state.store.figures()
        return figures.put_total, figures.got_messages

    async def runtime_info(self, client: Client, request: GetBrokerRuntimeInfo) -> KVTable:
        """Returns RocketMQ's figures, and some of Penstock's own, which other tools ignore."""
        store, settings = self._state.store, self._state.settings.now
        earliest = await asyncio.wrap_future(store.read_cold(store.earliest_time, client))
        figures, now = store.figures(), self._state.clock()
        put, got, root = figures.put_total, figures.got_messages, str(store.layout.root)
        disks = (figures.retention.disk if figures.retention is not None else None) or [_UNMEASURED]
        total = (disks[0].used_bytes + disks[0].free_bytes) / _GIB
        table: dict[str, object] = {
            "brokerVersionDesc": version_name(CURRENT),
            "brokerVersion": CURRENT,
            "penstockVersion": __version__,
            RUNTIME_KEY: HANDSHAKE_VERSION,
            "msgPutTotalYesterdayMorning": self.days.yesterday_morning[0],
            "msgPutTotalTodayMorning": self.days.today_morning[0],
            "msgPutTotalTodayNow": put,
            "msgGetTotalYesterdayMorning": self.days.yesterday_morning[1],
            "msgGetTotalTodayMorning": self.days.today_morning[1],
            "msgGetTotalTodayNow": got,
            **_request_queues(settings, acks=len(self._acks)),
            "heldPulls": len(self._held),
            "dispatchBehindBytes": figures.dispatch_behind_bytes,
            "dispatchBehindMillis": figures.dispatch_behind_ms,
            "dispatchMaxBuffer": 0,
            "remainHowManyDataToFlush": _size(figures.flush_behind_bytes),
            "remainHowManyDataToCommit": _size(0),
            "remainTransientStoreBufferNumbs": figures.transient_buffers_free,
            "pageCacheLockTimeMills": int(figures.put_lock_held_ms),
            "earliestMessageTimeStamp": earliest,
            "startAcceptSendRequestTimeStamp": settings.start_accept_send_request_time_stamp,
            "commitLogMinOffset": max(0, store.log.min_offset),
            "commitLogMaxOffset": store.log.max_offset,
            "bootTimestamp": figures.started_ms,
            "runtime": _duration(now - figures.started_ms),
            "putTps": _rates_text(rates.puts for rates in figures.rates),
            "getTotalTps": _rates_text(rates.gets for rates in figures.rates),
            "getTransferedTps": _rates_text(rates.got_messages for rates in figures.rates),
            "getFoundTps": _rates_text(rates.gets_found for rates in figures.rates),
            "getMissTps": _rates_text(rates.gets_missed for rates in figures.rates),
            "putMessageTimesTotal": put,
            "putMessageFailedTimes": figures.put_failed,
            "putMessageSizeTotal": figures.put_bytes,
            "putMessageAverageSize": figures.put_average_size,
            "putMessageEntireTimeMax": int(figures.put_slowest_ms),
            "putMessageDistributeTime": self._minute.text(figures.put_latency_ms),
            "putLatency99": _percentile(figures.put_latency_ms, 0.99),
            "putLatency999": _percentile(figures.put_latency_ms, 0.999),
            PUT_LATENCIES_KEY: _latencies(figures.put_latency_ms),
            "putMessageSeconds": figures.put_seconds,
            "getMessageTransferedMsgCount": got,
            "getMessageSizeTotal": figures.got_bytes,
            "getMessageEntireTimeMax": int(figures.get_slowest_ms),
            "getMessageDistributeTime": _latencies(figures.get_latency_ms),
            "getMessageSeconds": figures.get_seconds,
            "commitLogDiskRatio": disks[0].used_ratio,
            "consumeQueueDiskRatio": disks[-1].used_ratio,
            "commitLogDirCapacity": f"Total : {total:.1f} GiB, Free : {disks[0].free_bytes / _GIB:.1f} GiB.",
            "consumerNum": sum(len(group.clients) for group in self._state.clients.consumer_groups()),
            "topicNum": len(self._state.topics.all()),
            "groupNum": len(self._state.groups.all()),
            "putsRefused": self._state.puts_refused.replace(root, "the store"),
            "brokerHealth": "; ".join(self._state.health().reasons).replace(root, "the store") or "ok",
        }
        if request.penstock_counters:
            table[COUNTERS_KEY] = self._state.counters.totals().to_bytes().decode()
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

    async def delete_expired(self, client: Client) -> None:
        await asyncio.to_thread(self._state.store.delete_expired)


def _request_queues(settings: BrokerSettings, *, acks: int) -> dict[str, object]:
    """Returns RocketMQ's figures of request queues.

    Penstock has no request queues, because it serves a request when it reads it: nothing waits but the sends whose acks
    are pending. The capacities are the limits of one connection. A held pull is no load, so it does not count.
    """
    table: dict[str, object] = {}
    limits = (("send", settings.max_unflushed_sends), ("pull", settings.max_held_pulls), ("query", _MAX_DEFERRED))
    for kind, limit in limits:
        table[f"{kind}ThreadPoolQueueSize"] = acks if kind == "send" else 0
        table[f"{kind}ThreadPoolQueueCapacity"] = limit
        table[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] = 0
    table["EndTransactionQueueSize"] = 0
    table["EndTransactionThreadPoolQueueCapacity"] = _MAX_DEFERRED
    return table


def _item(figure: Figure) -> BrokerStatsItem:
    return BrokerStatsItem(sum=figure.total, tps=round(figure.per_second, 2), avgpt=1.0 if figure.total else 0.0)


def _rates_text(per_second: Iterable[float]) -> str:
    """Returns the rates over 10, 60 and 600 seconds as RocketMQ writes them."""
    return " ".join(f"{rate:.2f}" for rate in per_second)


_JAVA_CLASSES: Final = {
    "<=0ms": 1,
    "0~10ms": 10,
    "10~50ms": 50,
    "50~100ms": 100,
    "100~200ms": 200,
    "200~500ms": 500,
    "500ms~1s": 1000,
    "1~2s": 2000,
    "2~3s": 3000,
    "3~4s": 4000,
    "4~5s": 5000,
    "5~10s": 10_000,
    "10s~": None,
}
"""The upper bound in ms of each of RocketMQ's latency classes. RocketMQ cuts a latency to whole milliseconds, so that
`<=0ms` is what took less than one."""


class MinuteOfLatencies:
    """The puts of the current minute by RocketMQ's latency classes. RocketMQ starts from zero every minute, too."""

    def __init__(self) -> None:
        self._before: Mapping[str, int] = {}
        self._samples = 0

    def sample(self, counts: Mapping[str, int]) -> None:
        """Begins a new minute after each sixth call. `counts` are all puts since the start, by the store's bounds."""
        self._samples += 1
        if self._samples * SAMPLE_S % _MINUTE_S == 0:
            self._before = counts

    def text(self, counts: Mapping[str, int]) -> str:
        """Returns the counts as RocketMQ writes them: `[<=0ms]:5 [0~10ms]:1 ... [10s~]:0`."""
        grown = {bound: count - self._before.get(bound, 0) for bound, count in counts.items()}
        words = []
        for name, highest in _JAVA_CLASSES.items():
            bounds = [bound for bound in grown if highest is None or (bound != _MORE and int(bound) <= highest)]
            words.append(f"[{name}]:{sum(grown.pop(bound) for bound in bounds)}")
        return " ".join(words)


def _percentile(counts: Mapping[str, int], share: float) -> str:
    """Returns the bound in ms that this share of all latencies does not exceed; the highest one for those above it."""
    left = sum(counts.values()) * share
    for bound, count in counts.items():
        left -= count
        if left <= 0 and bound != _MORE:
            return f"{float(bound) if count else 0.0:.2f}"
    return f"{float(LATENCY_BOUNDS_MS[-1]):.2f}"


def _latencies(counts: dict[str, int]) -> str:
    """Returns the counts by latency class as RocketMQ writes them: `[<=1ms]:5 [<=2ms]:0 [2ms~]:0`."""
    *bounds, _ = counts
    classes = [*(f"<={bound}ms" for bound in bounds), f"{bounds[-1]}ms~"]
    return " ".join(f"[{each}]:{count}" for each, count in zip(classes, counts.values(), strict=True))


def _size(count: int) -> str:
    return f"{count} B"


def _duration(millis: int) -> str:
    days, seconds = divmod(max(0, millis) // 1000, 86_400)
    clock = time.gmtime(seconds)
    return f"[ {days} days, {clock.tm_hour} hours, {clock.tm_min} minutes, {clock.tm_sec} seconds ]"
