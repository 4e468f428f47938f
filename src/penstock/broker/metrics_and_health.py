"""A broker's own /metrics, /healthz and /readyz, as `penstock serve` answers them on a port of their own.

    observation = Observation(broker_settings)
    responder = HttpResponder(listener, observation.answer)     # its thread calls `answer`
    ...
    observation.serve(broker)

`answer` runs in the responder's thread. It asks the broker's loop for a copy of counters and tables, reads the times of
messages in a thread of the store, and renders in its own thread; nothing is counted for it, so sends and pulls cost the
same with and without it. Metrics are kept for two seconds, so that many readers cost as much as one. Metrics and their
names are those of `observation.metrics`, which the console uses, too. `recover`, `serve` and `stop` may be called from
any one other thread.

/healthz says whether a restart would help: 503 if the event loop does not answer, or a thread of the store has ended.
/readyz says whether clients are served: 503 while the store recovers or refuses messages, and while the broker stops.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.broker.table_persistence import HealthReport, election_problems
from penstock.errors import StoreFailed
from penstock.format.config_tables import ConsumerOffsets
from penstock.observation.http_responder import HttpAnswer
from penstock.observation.metrics import (
    CONTENT_TYPE,
    NODE,
    BrokerAvailability,
    CountedNode,
    ElectedNode,
    Family,
    Latencies,
    NodeFigures,
    ReplicationFigures,
    SlaveFigures,
    TopicLag,
    availability,
    counter_metrics,
    failover_metrics,
    is_internal_group,
    is_internal_topic,
    lag_metrics,
    node_labels,
    node_metrics,
    politely,
    render,
    replication_metrics,
)
from penstock.observation.process_metrics import SILENT_LOOP, ask_loop, process_metrics
from penstock.protocol.bodies.admin import HaElections, HaRuntimeInfo
from penstock.protocol.bodies.stats import BrokerCounters
from penstock.store.message_store import MessageStore
from penstock.store.put_and_get_statistics import Snapshot

_KEPT_S: Final = 2.0


class _Tables(NamedTuple):
    """Copies of what the broker's loop owns, taken in one turn of it."""

    health: HealthReport
    puts_refused: str
    figures: Snapshot
    counters: BrokerCounters
    offsets: ConsumerOffsets
    topics: list[str]
    groups: list[str]
    replication: HaRuntimeInfo
    connections: int


class _Serving(NamedTuple):
    broker: Broker
    loop: asyncio.AbstractEventLoop


class Observation:
    """What a broker answers to those that watch it, from the first moment of its start to its end."""

    def __init__(self, broker: BrokerSettings) -> None:
        self._name, self._cluster, self._broker_id = broker.broker_name, broker.broker_cluster_name, broker.broker_id
        self._elections: Callable[[], HaElections] | None = None
        self._phase = "opening the store"
        self._serving: _Serving | None = None
        self._is_stopping = False
        self._rendering: asyncio.Task[bytes] | None = None
        self._rendered_at = 0.0

    def recover(self, phase: str, done: int, total: int) -> None:
        """Reports how far the store's recovery is."""
        self._phase = f"{phase}: {done * 100 // total} %" if total > 0 else phase

    def elect(self, elections: Callable[[], HaElections]) -> None:
        """Reports how the broker's elections stand, from now on, also while no broker serves."""
        self._elections = elections

    def serve(self, broker: Broker) -> None:
        """Reports that the broker serves; with elections, another one after each change of its role. Call it on the
        broker's loop.
        """
        self._broker_id = broker.identity.broker_id
        self._serving = _Serving(broker, asyncio.get_running_loop())

    def stop(self) -> None:
        """Reports that the broker stops."""
        self._is_stopping = True

    async def answer(self, path: str) -> HttpAnswer | None:
        """Returns the answer to a GET; None if there is no such path."""
        if path == "/metrics":
            return HttpAnswer(HTTPStatus.OK, await self._metrics(), CONTENT_TYPE)
        if path == "/healthz":
            return await self._healthz()
        if path == "/readyz":
            return await self._readyz()
        return None

    # -- health ----------------------------------------------------------------------------------------------

    async def _healthz(self) -> HttpAnswer:
        serving = self._serving
        if serving is None or self._is_stopping:
            return _status("ok", "stopping" if self._is_stopping else self._beginning())
        try:
            health, is_dead = await ask_loop(serving.loop, lambda: (serving.broker.health(), _has_dead_thread(serving)))
        except TimeoutError:
            return _status("failed", SILENT_LOOP, HTTPStatus.SERVICE_UNAVAILABLE)
        why = _hidden(serving.broker.store, "; ".join(health.reasons))
        if is_dead:
            return _status("failed", why, HTTPStatus.SERVICE_UNAVAILABLE)
        return _status("ok", why)

    def _beginning(self) -> str:
        """Returns what a broker that does not serve yet waits for."""
        problems = () if self._elections is None else election_problems(self._elections())
        return "; ".join(problems) or self._phase

    async def _readyz(self) -> HttpAnswer:
        state, why = await self._state()
        ready = state is BrokerAvailability.SERVING
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return HttpAnswer.of_json({"state": state.value, "ready": ready, "why": why}, status)

    async def _state(self) -> tuple[BrokerAvailability, str]:
        serving = self._serving
        if self._is_stopping:
            return BrokerAvailability.READ_ONLY, "this broker is stopping"
        if serving is None:
            return BrokerAvailability.RECOVERING, self._beginning()
        store = serving.broker.store
        try:
            figures, refused, health = await ask_loop(
                serving.loop, lambda: (store.figures(), serving.broker.state.puts_refused, serving.broker.health())
            )
        except TimeoutError:
            return BrokerAvailability.UNREACHABLE, SILENT_LOOP
        why = refused or "; ".join(health.reasons)
        return availability(refused, _disk_ratio(figures)), _hidden(store, why)

    # -- metrics ---------------------------------------------------------------------------------------------

    async def _metrics(self) -> bytes:
        """Returns the metrics, rendered at most every two seconds; callers at the same time share one rendering."""
        task, now = self._rendering, time.monotonic()
        if task is None or (task.done() and now - self._rendered_at >= _KEPT_S):
            self._rendered_at = now
            task = self._rendering = asyncio.ensure_future(self._render())
        return await asyncio.shield(task)

    async def _render(self) -> bytes:
        serving = self._serving
        if serving is None or self._is_stopping:
            return render(itertools.chain(self._without_broker(), process_metrics()))
        try:
            tables = await ask_loop(serving.loop, lambda: _copy(serving.broker))
        except TimeoutError:
            unreachable = self._without_broker(BrokerAvailability.UNREACHABLE)
            return render(itertools.chain(unreachable, process_metrics()))
        read = _Reads(serving.broker.store, self._labels, tables)
        try:
            oldest_ms, lags = await asyncio.wrap_future(serving.broker.store.read_cold(read, self))
        except (StoreFailed, asyncio.CancelledError):  # the store was closed meanwhile
            return render(itertools.chain(self._without_broker(), process_metrics()))
        own = frozenset((self._name, self._cluster))
        topics = sum(not is_internal_topic(topic, own) for topic in tables.topics)
        groups = sum(not is_internal_group(group) for group in tables.groups)
        node = self._node(serving.broker.store, tables, oldest_ms)
        families = (
            node_metrics(node.state is BrokerAvailability.SERVING, [node]),
            counter_metrics([CountedNode(self._labels, tables.counters)], lambda topic: is_internal_topic(topic, own)),
            lag_metrics(lags, groups, topics),
            replication_metrics([self._replication(tables.replication)]),
            self._failover_metrics(),
            self._own_metrics(tables),
            process_metrics(),
        )
        return render(itertools.chain(*families))

    def _without_broker(self, state: BrokerAvailability = BrokerAvailability.RECOVERING) -> Iterator[Family]:
        """Yields the state alone, while the broker recovers, stops or hangs."""
        state = BrokerAvailability.READ_ONLY if self._is_stopping else state
        node = NodeFigures(
            cluster=self._cluster, name=self._name, broker_id=self._broker_id, state=state, is_healthy=False
        )
        for family in node_metrics(False, [node]):
            if family.name.startswith(("penstock_broker_", "penstock_ready")):
                yield family
        yield from self._failover_metrics()

    def _failover_metrics(self) -> Iterator[Family]:
        if self._elections is not None:
            yield from failover_metrics([ElectedNode(self._labels, self._elections())])

    @property
    def _labels(self) -> list[str]:
        return node_labels(self._cluster, self._name, self._broker_id)

    def _node(self, store: MessageStore, tables: _Tables, oldest_ms: int) -> NodeFigures:
        figures = tables.figures
        ratio = _disk_ratio(figures)
        return NodeFigures(
            cluster=self._cluster,
            name=self._name,
            broker_id=self._broker_id,
            state=availability(tables.puts_refused, ratio),
            is_healthy=tables.health.ok,
            log_bytes=store.log.max_offset - max(0, store.log.min_offset),
            flush_behind_bytes=figures.flush_behind_bytes,
            dispatch_behind_bytes=figures.dispatch_behind_bytes,
            dispatch_behind_seconds=figures.dispatch_behind_ms / 1000,
            oldest_ms=oldest_ms,
            bytes_in=figures.put_bytes,
            bytes_out=figures.got_bytes,
            put_latency=_latencies(figures.put_latency_ms, figures.put_seconds),
            get_latency=_latencies(figures.get_latency_ms, figures.get_seconds),
            disk_used_ratio=ratio,
        )

    def _replication(self, info: HaRuntimeInfo) -> ReplicationFigures:
        client = info.ha_client_runtime_info
        if client is not None:
            return ReplicationFigures(
                self._labels, True, (), client.master_addr, client.activated, client.last_read_timestamp
            )
        slaves = [
            SlaveFigures(each.addr, each.in_sync, each.diff, each.behind_seconds, each.last_ack_timestamp)
            for each in info.ha_connection_info
        ]
        return ReplicationFigures(self._labels, False, slaves)

    def _own_metrics(self, tables: _Tables) -> Iterator[Family]:
        """Yields what the console does not know of a broker."""
        connections = Family("penstock_connections", "gauge", "Open connections of clients.", NODE)
        connections.add(self._labels, tables.connections)
        failed = Family("penstock_puts_failed_total", "counter", "Puts that the store refused or failed.", NODE)
        failed.add(self._labels, tables.figures.put_failed)
        yield from (connections, failed)


def _status(status: str, why: str, code: HTTPStatus = HTTPStatus.OK) -> HttpAnswer:
    return HttpAnswer.of_json({"status": status, "why": why}, code)


def _hidden(store: MessageStore, text: str) -> str:
    """Returns a text without the store's path, because the port asks for no token."""
    return text.replace(str(store.layout.root), "the store")


def _has_dead_thread(serving: _Serving) -> bool:
    return bool(serving.broker.store.dead_threads)


def _copy(broker: Broker) -> _Tables:
    state = broker.state
    return _Tables(
        health=broker.health(),
        puts_refused=state.puts_refused,
        figures=broker.store.figures(),
        counters=state.counters.totals(),
        offsets=state.offsets.snapshot(),
        topics=list(state.topics.all()),
        groups=list(state.groups.all()),
        replication=broker.replication.status.now(),
        connections=broker.connections,
    )


class _Reads:
    """Reads the age of the oldest message, and the lag of each group; in a thread of the store, because the messages
    whose times it needs may be on disk only.
    """

    def __init__(self, store: MessageStore, labels: list[str], tables: _Tables) -> None:
        self._store = store
        self._labels = labels
        self._tables = tables

    def __call__(self) -> tuple[int, list[TopicLag]]:
        now = time.time_ns() // 1_000_000
        oldest = self._store.earliest_time()
        return max(0, now - oldest) if oldest > 0 else 0, list(self._lags(now))

    def _lags(self, now: int) -> Iterator[TopicLag]:
        topics = frozenset(self._tables.topics)
        for (topic, group), queues in politely(self._tables.offsets.offsets.items()):
            if topic not in topics or is_internal_group(group):
                continue
            behind = latency = 0
            for queue_id, consumed in queues.items():
                lag = max(0, self._store.max_offset(topic, queue_id) - max(0, consumed))
                behind += lag
                stored = self._store.store_time(topic, queue_id, consumed - 1) if lag and consumed > 0 else 0
                latency = max(latency, now - stored if stored > 0 else 0)
            yield TopicLag(self._labels, topic, group, behind, latency)


def _disk_ratio(figures: Snapshot) -> float | None:
    disks = figures.retention.disk if figures.retention is not None else []
    return disks[0].used_ratio if disks else None


def _latencies(counts: dict[str, int], seconds: float) -> Latencies:
    bounds = {int(bound): count for bound, count in counts.items() if bound != "more"}
    return Latencies(bounds, counts.get("more", 0), seconds)
