"""The Overview page: live rates, latency, backlog, brokers, replication and elections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import ui

from penstock.console.chart_samples import SAMPLE_S
from penstock.console.console import Console
from penstock.console.pages import formatting, theme
from penstock.console.pages.frame import frame, prefill, refresh_every, section, stat, table, title
from penstock.console.replication import BrokerReplication, ReplicaSet, replica_sets

_SHOWN = 300
"""The number of samples in a chart, which is ten minutes."""
_SERIES = (
    ("in_per_second", "out_per_second"),
    ("p50_ms", "p99_ms"),
    ("flush_behind_bytes", "dispatch_behind_bytes"),
)
"""The fields of `Sample` that each chart shows."""


def add(console: Console) -> None:
    @ui.page("/")
    async def overview() -> None:
        with frame(console, "Overview"):
            title("Overview", "All brokers together; the charts show the last ten minutes.")
            with ui.element("div").classes("p-stats"):
                figures = {
                    name: stat(name)
                    for name in (
                        "in, messages/s",
                        "out, messages/s",
                        "put latency, p99",
                        "not flushed yet",
                        "not dispatched yet",
                        "disk used",
                        "Lag",
                    )
                }
            with ui.element("div").classes("p-grid"):
                charts = [
                    _chart("Messages per second", ["in", "out"], (theme.IN, theme.OUT)),
                    _chart("Put latency, ms", ["p50", "p99"], (theme.IN, theme.LATE)),
                    _chart("Backlog, bytes", ["flush", "dispatch"], (theme.LATE, theme.BEHIND)),
                ]
            with ui.card().classes("p-card"):
                section("Brokers")
                brokers = table(
                    [
                        ("name", "broker", "left"),
                        ("address", "address", "left"),
                        ("state", "state", "left"),
                        ("version", "version", "left"),
                        ("in", "in/s"),
                        ("out", "out/s"),
                        ("log", "log"),
                        ("oldest", "oldest message"),
                        ("disk", "disk"),
                        ("up", "up for"),
                    ],
                    "address",
                ).props("data-mark=brokers")
            show_replication = _replication(console)
            show_replicas = _replicas(console)

            async def refresh() -> None:
                figures_by_broker = await console.view.brokers()
                await show_replication()
                await show_replicas()
                brokers.rows = [
                    {
                        "name": each.name if each.broker_id == 0 else f"{each.name} (slave {each.broker_id})",
                        "address": each.address,
                        "state": f"{each.state.value}: {each.why}" if each.why else each.state.value,
                        "version": each.version,
                        "in": formatting.rate(each.put_per_second),
                        "out": formatting.rate(each.got_per_second),
                        "log": formatting.size(each.log_max_offset - each.log_min_offset),
                        "oldest": formatting.ago(each.earliest_ms),
                        "disk": formatting.share(each.disk_used_ratio),
                        "up": formatting.ago(each.started_ms).removesuffix(" ago"),
                    }
                    for each in figures_by_broker
                ]
                samples = list(console.chart_samples.samples)[-_SHOWN:]
                if not samples:
                    return
                last = samples[-1]
                lags = [kept[-1][1] for kept in console.chart_samples.lags.values() if kept]
                for shown, text in zip(
                    figures.values(),
                    (
                        formatting.rate(last.in_per_second),
                        formatting.rate(last.out_per_second),
                        formatting.NOTHING if last.p99_ms is None else f"≤ {last.p99_ms} ms",
                        formatting.size(last.flush_behind_bytes),
                        formatting.size(last.dispatch_behind_bytes),
                        formatting.share(last.disk_used_ratio),
                        formatting.count(sum(lags)) if lags else formatting.NOTHING,
                    ),
                    strict=True,
                ):
                    shown.set_text(text)
                for chart, of in zip(charts, _SERIES, strict=True):
                    for line, field in zip(chart.options["series"], of, strict=True):
                        values = [(each.at_ms, getattr(each, field)) for each in samples]
                        line["data"] = [(at, None if value is None else round(value, 1)) for at, value in values]

            refresh_every(SAMPLE_S, refresh)
            await prefill(refresh)


def _replication(console: Console) -> Callable[[], Awaitable[None]]:
    """Adds a table of masters and slaves, hidden if there are no slaves. Returns the function that fills the table."""
    with ui.card().classes("p-card").props("data-mark=replication") as card:
        section("Replication")
        shown = table(
            [
                ("name", "broker", "left"),
                ("with", "with", "left"),
                ("state", "state", "left"),
                ("bytes", "lag"),
                ("seconds", "lag time"),
                ("last", "last contact"),
            ],
            "key",
        )
    card.set_visibility(False)

    async def refresh() -> None:
        brokers = [each for each in await console.view.replication() if not each.is_alone and each.election is None]
        card.set_visibility(bool(brokers))
        rows = [row for each in brokers for row in _replication_rows(each)]
        shown.rows = [{**row, "key": f"{row['name']} {row['with']}"} for row in rows]

    return refresh


def _replication_rows(of: BrokerReplication) -> list[dict[str, str]]:
    """Returns one row per slave for a master, and one row for a slave."""
    if of.is_slave:
        return [
            {
                "name": f"{of.broker} (slave {of.broker_id})",
                "with": f"follows {of.follows}" if of.follows else "has no master",
                "state": "connected" if of.is_following else of.problem or "not connected",
                "bytes": formatting.NOTHING,
                "seconds": formatting.NOTHING,
                "last": formatting.ago(of.last_received_ms),
            }
        ]
    return [
        {
            "name": of.broker,
            "with": f"is followed by {each.address}",
            "state": "in sync" if each.is_in_sync else "out of sync",
            "bytes": formatting.size(each.behind_bytes),
            "seconds": formatting.span(each.behind_seconds * 1000),
            "last": formatting.ago(each.last_acknowledged_ms),
        }
        for each in of.slaves
    ]


def _replicas(console: Console) -> Callable[[], Awaitable[None]]:
    """Adds tables of the replicas of elected sets and of their last masters, hidden if there are none. Returns the
    function that fills the tables.
    """
    with ui.card().classes("p-card").props("data-mark=replicas") as card:
        section("Replicas")
        shown = table(
            [
                ("set", "broker", "left"),
                ("id", "id"),
                ("address", "address", "left"),
                ("role", "role", "left"),
                ("epoch", "epoch"),
                ("sync", "in sync", "left"),
                ("end", "log end"),
                ("bytes", "lag"),
                ("seconds", "lag time"),
                ("lease", "lease left"),
                ("why", "why not master, or what is wrong", "left"),
            ],
            "key",
        )
    with ui.card().classes("p-card").props("data-mark=masters") as history:
        section("Last masters")
        masters = table(
            [
                ("set", "broker", "left"),
                ("epoch", "epoch"),
                ("id", "replica"),
                ("since", "since"),
                ("why", "why", "left"),
            ],
            "key",
            pagination=10,
        )
    card.set_visibility(False)
    history.set_visibility(False)

    async def refresh() -> None:
        sets = replica_sets(await console.view.replication())
        card.set_visibility(bool(sets))
        history.set_visibility(bool(sets))
        shown.rows = [row for each in sets for row in _replica_rows(each)]
        masters.rows = [
            {
                "key": f"{each.broker} {entry.epoch}",
                "set": each.broker,
                "epoch": formatting.count(entry.epoch),
                "id": entry.master,
                "since": formatting.moment(entry.since_ms),
                "why": entry.why,
            }
            for each in sets
            for entry in each.masters
        ]

    return refresh


def _replica_rows(of: ReplicaSet) -> list[dict[str, str]]:
    paused = " (elections paused)" if of.is_paused else ""
    return [
        {
            "key": f"{of.broker} {each.id}",
            "set": f"{of.broker}{paused}",
            "id": str(each.id),
            "address": each.address or formatting.NOTHING,
            "role": each.role or "not running",
            "epoch": formatting.count(each.epoch),
            "sync": "yes" if each.is_in_sync else "no",
            "end": formatting.count(each.log_end),
            "bytes": formatting.size(each.behind_bytes),
            "seconds": _seconds(each.behind_seconds),
            "lease": _seconds(each.lease_left_seconds),
            "why": each.why,
        }
        for each in of.replicas
    ]


def _seconds(seconds: float | None) -> str:
    return formatting.span(None if seconds is None else seconds * 1000)


def _chart(name: str, series: list[str], colours: tuple[str, ...]) -> ui.echart:
    with ui.card().classes("p-card"):
        section(name)
        return ui.echart(theme.lines(series, colours=colours)).style("height: 15rem; width: 100%")
