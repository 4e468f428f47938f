"""Samples of the cluster for the charts: of brokers every two seconds, of groups every thirty seconds.

Samples of the last half hour are kept, in memory only and limited in number. The lag of single queues is sampled only
while a viewer has the group's page open. Rates and latencies are computed from the difference of two samples. The
module is not thread-safe: use it from the event loop's thread only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.console.cached_cluster import ClusterView
from penstock.console.cluster_figures import BrokerFigures, GroupFigures, percentile

SAMPLE_S: Final = 2.0
GROUPS_S: Final = 30.0
_KEPT_S: Final = 1800
_MAX_GROUPS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample over all masters."""

    at_ms: int
    in_per_second: float
    out_per_second: float
    p50_ms: int | None
    p99_ms: int | None
    flush_behind_bytes: int
    dispatch_behind_bytes: int
    disk_used_ratio: float | None


class ChartSamples:
    """The samples of brokers and groups, oldest first."""

    def __init__(self, view: ClusterView, clock: Callable[[], float] = time.time) -> None:
        self._view = view
        self._clock = clock
        self.samples: deque[Sample] = deque(maxlen=int(_KEPT_S / SAMPLE_S))
        self.lags: dict[str, deque[tuple[int, int]]] = {}
        """By group: pairs of time (epoch milliseconds) and lag (messages)."""
        self.queue_lags: dict[str, deque[tuple[int, dict[str, int]]]] = {}
        self._last: tuple[float, dict[str, BrokerFigures]] | None = None
        self._groups_due = 0.0

    async def sample(self) -> None:
        """Takes one sample now. To be called every SAMPLE_S seconds. Raises PenstockError."""
        now = self._clock()
        brokers = {broker.address: broker for broker in await self._view.brokers() if broker.broker_id == 0}
        if self._last is not None:
            self.samples.append(_between(*self._last, now, brokers))
        self._last = now, brokers
        if now >= self._groups_due:
            self._groups_due = now + GROUPS_S
            groups = await self._view.progress()
            self.lags = {name: kept for name, kept in self.lags.items() if name in groups}
            at_ms = int(now * 1000)
            for name, progress in groups.items():
                if name in self.lags or len(self.lags) < _MAX_GROUPS:
                    kept = self.lags.setdefault(name, deque(maxlen=int(_KEPT_S / GROUPS_S)))
                    kept.append((at_ms, progress.lag))

    def add_group(self, group: GroupFigures) -> None:
        """Adds a sample of the lag of each queue of a group."""
        if group.name not in self.queue_lags and len(self.queue_lags) >= _MAX_GROUPS:
            self.queue_lags.clear()
        kept = self.queue_lags.setdefault(group.name, deque(maxlen=int(_KEPT_S / SAMPLE_S)))
        now = int(self._clock() * 1000)
        if not kept or now - kept[-1][0] >= 900:
            kept.append((now, {f"{each.topic} {each.broker}:{each.queue_id}": each.lag for each in group.queues}))


def _between(then: float, before: dict[str, BrokerFigures], now: float, after: dict[str, BrokerFigures]) -> Sample:
    span = max(now - then, 1e-3)
    came = went = 0
    latency: dict[int, int] = {}
    above = 0
    for address, broker in after.items():
        old = before.get(address)
        if old is None or old.started_ms != broker.started_ms:
            continue
        came += max(0, broker.put_total - old.put_total)
        went += max(0, broker.got_total - old.got_total)
        for bound, count in broker.put_latency.items():
            latency[bound] = latency.get(bound, 0) + max(0, count - old.put_latency.get(bound, 0))
        above += max(0, broker.put_latency_above - old.put_latency_above)
    ratios = [broker.disk_used_ratio for broker in after.values() if broker.disk_used_ratio is not None]
    return Sample(
        at_ms=int(now * 1000),
        in_per_second=came / span,
        out_per_second=went / span,
        p50_ms=percentile(latency, above, 0.5),
        p99_ms=percentile(latency, above, 0.99),
        flush_behind_bytes=sum(broker.flush_behind_bytes for broker in after.values()),
        dispatch_behind_bytes=sum(broker.dispatch_behind_bytes for broker in after.values()),
        disk_used_ratio=max(ratios, default=None),
    )
