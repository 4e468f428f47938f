"""The Pipeline page: starts jobs, on Spark or without, and shows their progress and results."""

from __future__ import annotations

import json
from typing import Any

from nicegui import ui

from penstock.console.console import Console
from penstock.console.job_forms import EXPORT_FOLDER, FORMS, ON_SPARK, Field, JobForm
from penstock.console.job_processes import Job, JobState
from penstock.console.pages import formatting, theme
from penstock.console.pages.frame import confirm, frame, pairs, refresh_every, section, show_errors, stat, table, title
from penstock.optional_packages import how_to_install

_MAX_ROWS = 500


def add(console: Console) -> None:
    @ui.page("/pipeline")
    def pipeline() -> None:
        with frame(console, "Pipeline"):
            title("Pipeline", "Jobs over the stored messages: without Spark if the log is small, otherwise on Spark.")
            with ui.element("div").classes("p-grid"):
                for form in FORMS.values():
                    _form(console, form)
            with ui.card().classes("p-card"):
                section("Jobs")
                shown = table(
                    [
                        ("name", "job", "left"),
                        ("state", "state", "left"),
                        ("way", "runs", "left"),
                        ("share", "done"),
                        ("started", "started", "left"),
                        ("took", "took"),
                        ("log", "last log line", "left"),
                    ],
                    "name",
                ).props('no-data-label="No jobs yet." wrap-cells')

            async def refresh() -> None:
                shown.rows = [_row(job) for job in reversed(console.jobs.all.values())]

            refresh_every(1.0, refresh)

    @ui.page("/pipeline/{number}")
    def job(number: int) -> None:
        started = console.jobs.all.get(number)
        with frame(console, f"Job {number}", "Pipeline"):
            if started is None:
                title("Job not found", "Jobs are lost when the console ends.")
            else:
                _one(console, started)


def _row(job: Job) -> dict[str, Any]:
    return {
        "name": f"{job.number} {job.verb}",
        "link": formatting.path("pipeline", str(job.number)),
        "state": job.state.value,
        "way": job.way or formatting.NOTHING,
        "share": f"{job.share} %",
        "started": formatting.moment(job.started_ms),
        "took": formatting.span(job.ended_ms - job.started_ms) if job.ended_ms else formatting.NOTHING,
        "log": job.log[-1] if job.log else "",
    }


def _form(console: Console, form: JobForm) -> None:
    with ui.card().classes("p-card").props(f"data-mark=form-{form.verb}"):
        section(form.title)
        ui.label(form.about).classes("soft small")
        inputs: dict[str, Any] = {}
        if form.fields:
            with ui.expansion("Conditions" if form.verb == "search" else "Options", value=False).style("width: 100%"):
                for field in form.fields:
                    inputs[field.name] = _input(field).style("width: 100%")
                if form.verb == "export":
                    folder = ui.input("Folder", value="messages").props("outlined dense")
                    inputs[EXPORT_FOLDER] = folder.style("width: 100%")
        missing = console.missing_packages(form)
        if missing:
            ui.label(missing).classes("bad small").props("data-mark=missing")
        elif way := console.spark_only(form):
            ui.label(f"Runs {way}.").classes("soft small")
        else:
            inputs[ON_SPARK] = _spark_switch()

        async def start() -> None:
            given = {name: _text(each.value) for name, each in inputs.items() if each.value}
            needs_consent = form.confirmation and "dry-run" not in given
            if needs_consent and not await confirm(f"Start {form.verb}?", [form.confirmation], "Start"):
                return
            with show_errors():
                started = console.start_job(form.verb, given)
                ui.navigate.to(formatting.path("pipeline", str(started.number)))

        button = ui.button(f"Start {form.verb}", icon="play_arrow", on_click=start).props("unelevated no-caps")
        button.set_enabled(not missing)


def _spark_switch() -> Any:
    switch = ui.switch("On Spark")
    lacking = how_to_install("spark")
    if lacking:
        switch.disable()
        ui.label(f"Spark {lacking}").classes("soft small").props("data-mark=missing-spark")
    return switch


def _input(field: Field) -> Any:
    if field.is_switch:
        return ui.switch(field.label)
    if field.choices:
        return ui.select(list(field.choices), label=field.label, clearable=True).props("outlined dense")
    kind = ui.textarea if field.repeats else ui.input
    return kind(field.label).props("outlined dense" + (" autogrow" if field.repeats else ""))


def _text(value: object) -> str:
    return "true" if value is True else str(value)


def _one(console: Console, job: Job) -> None:
    with ui.element("div").classes("p-row"):
        title(f"Job {job.number}: {job.verb}", " ".join(job.arguments))
        ui.space()
        stop = ui.button("Cancel", icon="stop", on_click=lambda: console.jobs.cancel(job)).props("flat no-caps")
    with ui.element("div").classes("p-stats"):
        state, share, took = stat("state"), stat("done"), stat("took")
    way = ui.label().classes("soft small").props("data-mark=way")
    bar = ui.linear_progress(value=0, show_value=False).props("rounded aria-label=Progress")
    results = ui.column().style("width: 100%; gap: 1rem").props("data-mark=results")
    with ui.card().classes("p-card"):
        section("Log")
        log = ui.label().classes("p-body")
    drawn: list[bool] = []

    async def refresh() -> None:
        row = _row(job)
        state.set_text(row["state"])
        share.set_text(row["share"])
        took.set_text(row["took"])
        way.set_text(f"Runs {job.way}." if job.way else "Chooses between Spark and a process of its own …")
        bar.set_value(job.share / 100)
        running = job.state is JobState.RUNNING
        bar.props(
            add="indeterminate" if running and not job.share else "",
            remove="" if running and not job.share else "indeterminate",
        )
        stop.set_visibility(running)
        log.set_text("\n".join(job.log) or formatting.NOTHING)
        if not running and not drawn:
            drawn.append(True)
            with results:
                _results(job)

    refresh_every(1.0, refresh)


# -- results -------------------------------------------------------------------------------------------------------


def _results(job: Job) -> None:
    results = job.results
    if job.verb == "usage" and results:
        _usage(results[0])
    elif job.verb == "verify" and results:
        _verify(results[0])
    elif job.verb == "search":
        _search(results)
    elif results:
        ui.label(json.dumps(results, indent=2)[: 64 << 10]).classes("p-body")


def _usage(usage: dict[str, Any]) -> None:
    counts = [each for each in usage["counts"] if each["by"] == "topic"]
    counts.sort(key=lambda each: -each["bytes"])
    with ui.element("div").classes("p-stats"):
        stat("messages", formatting.count(usage["messages"]))
        stat("bytes", formatting.size(usage["bytes"]))
        for disk in usage["stores"]:
            left = disk["days_left"]
            stat("Disk full in", formatting.NOTHING if left is None else f"{left:.0f} days")
    with ui.element("div").classes("p-grid"):
        with ui.card().classes("p-card"):
            section("Bytes by topic")
            ui.echart(_bars([(each["topic"], each["bytes"]) for each in counts[:15]])).style(
                "height: 20rem; width: 100%"
            )
        with ui.card().classes("p-card"):
            section("Messages by hour")
            hours: dict[int, int] = {}
            for each in usage["counts"]:
                if each["by"] == "hour":
                    hours[each["from"]] = hours.get(each["from"], 0) + each["messages"]
            options = theme.lines(["messages"])
            options["series"] = [{"type": "bar", "name": "messages", "data": sorted(hours.items()), "barMaxWidth": 40}]
            ui.echart(options).style("height: 20rem; width: 100%")
    with ui.card().classes("p-card"):
        columns = [
            ("topic", "topic", "left"),
            ("messages", "messages"),
            ("bytes", "bytes"),
            ("p50", "p50"),
            ("p99", "p99"),
        ]
        table(columns, "topic", pagination=25).rows = [
            {
                "topic": each["topic"],
                "messages": formatting.count(each["messages"]),
                "bytes": formatting.size(each["bytes"]),
                "p50": formatting.size(each["p50"]),
                "p99": formatting.size(each["p99"]),
            }
            for each in counts[:_MAX_ROWS]
        ]


def _bars(of: list[tuple[str, int]]) -> dict[str, Any]:
    grey = {"color": "#8a9aa1"}
    return {
        "animation": False,
        "color": [theme.IN],
        "grid": {"left": 8, "right": 20, "top": 8, "bottom": 8, "containLabel": True},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "xAxis": {"type": "value", "axisLabel": grey, "splitLine": {"lineStyle": {"color": "#8a9aa133"}}},
        "yAxis": {"type": "category", "inverse": True, "data": [name for name, _ in of], "axisLabel": grey},
        "series": [{"type": "bar", "data": [value for _, value in of], "barMaxWidth": 22}],
    }


def _verify(report: dict[str, Any]) -> None:
    with ui.element("div").classes("p-stats"):
        stat("errors", formatting.count(report["errors"]))
        stat("notes", formatting.count(report["notes"]))
    for each in report["stores"]:
        with ui.card().classes("p-card"):
            section(str(each["store"]))
            if each.get("problem"):
                ui.label(each["problem"]).classes("bad")
                continue
            scalars = [(name, str(value)) for name, value in each.items() if isinstance(value, str | int | float)]
            pairs(scalars)
            findings = each.get("findings") or []
            if findings:
                ui.label(json.dumps(findings[:_MAX_ROWS], indent=1)).classes("p-body")
            else:
                ui.label("No problems found.").classes("good")


def _search(messages: list[dict[str, Any]]) -> None:
    with ui.card().classes("p-card"):
        section(f"{len(messages)} found")
        columns = [
            ("id", "id", "left"),
            ("topic", "topic", "left"),
            ("place", "queue and offset", "left"),
            ("stored", "stored", "left"),
            ("tags", "tag", "left"),
            ("keys", "keys", "left"),
        ]
        table(columns, "id", pagination=25).props("data-mark=hits").rows = [
            {
                "id": each.get("msg_id") or "",
                "link": formatting.path("message", str(each.get("msg_id"))),
                "topic": each.get("topic"),
                "place": f"{each.get('queue_id')} at {each.get('queue_offset')}",
                "stored": formatting.moment(each.get("store_timestamp")),
                "tags": each.get("tags") or "",
                "keys": " ".join(each.get("keys") or ()),
            }
            for each in messages[:_MAX_ROWS]
        ]
