"""The Dead letters page: lists messages that exceeded their group's retry limit, and resends one or several."""

from __future__ import annotations

from nicegui import ui

from penstock.client.message import ReceivedMessage
from penstock.console.console import Console
from penstock.console.pages import formatting
from penstock.console.pages.frame import confirm, frame, refresh_every, run_command, show_errors, table, title
from penstock.console.pages.messages import list_columns, list_row

_SHOWN = 100


def add(console: Console) -> None:
    @ui.page("/dead-letters")
    def dead_letters() -> None:
        with frame(console, "Dead letters"):
            title("Dead letters", "Messages that exceeded the group's retry limit.")
            with ui.card().classes("p-card"):
                groups = table([("name", "group", "left"), ("messages", "dead letters")], "name").props(
                    'no-data-label="No dead letters."'
                )

            async def refresh() -> None:
                counts = await console.search.dead_letter_groups()
                groups.rows = [
                    {"name": group, "link": formatting.path("dead-letters", group), "messages": formatting.count(count)}
                    for group, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
                    if count
                ]

            refresh_every(5.0, refresh)

    @ui.page("/dead-letters/{group}")
    async def of_group(group: str) -> None:
        with frame(console, f"Dead letters of {group}", "Dead letters"):
            await _one(console, group)


async def _one(console: Console, group: str) -> None:
    letters: dict[str, ReceivedMessage] = {}
    with ui.element("div").classes("p-row"):
        title(f"Dead letters of {group}", f"The newest {_SHOWN}. Dead letters stay until their files expire.")
        ui.space()
        to_topic = ui.switch("To all groups of the topic").tooltip(
            f"Otherwise only {group} gets them, with a new series of retries."
        )
        resend_button = ui.button("Resend", icon="replay").props("unelevated no-caps")
    with ui.card().classes("p-card"):
        shown = table(list_columns(), "key", selection="multiple", pagination=25).props(
            'no-data-label="No dead letters." data-mark=letters wrap-cells'
        )

    async def load() -> None:
        with show_errors():
            newest = await console.search.dead_letters(group, _SHOWN)
            letters.update({each.offset_msg_id: each for each in newest})
            shown.rows = [list_row(each) for each in newest]

    async def resend() -> None:
        chosen = [letters[row["key"]] for row in shown.selected if row["key"] in letters]
        if not chosen:
            ui.notify("Select dead letters first.", type="warning")
            return
        receivers = "All groups of the topic receive them." if to_topic.value else f"Only {group} receives them."
        question = f"Resend {len(chosen)} dead letter{'s' if len(chosen) > 1 else ''}?"
        if await confirm(question, [receivers, "The originals stay here."], "Resend"):
            await run_command(console.commands.resend(chosen, to_topic=bool(to_topic.value)))
            shown.selected.clear()
            await load()

    resend_button.on_click(resend)
    with show_errors():
        if any(row.name == f"%DLQ%{group}" for row in await console.view.topics()):
            await load()
