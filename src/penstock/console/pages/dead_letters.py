"""Dead letters: what groups gave up on, and sending it again, one or many."""

from __future__ import annotations

from nicegui import ui

from penstock.client.message import ReceivedMessage
from penstock.console.console import Console
from penstock.console.pages import formatting
from penstock.console.pages.frame import ask, every, frame, table, tell, telling, title
from penstock.console.pages.messages import list_columns, list_row

_SHOWN = 100


def add(console: Console) -> None:
    @ui.page("/dead-letters")
    def dead_letters() -> None:
        with frame(console, "Dead letters"):
            title("Dead letters", "Messages that a group has tried to consume as often as it may.")
            with ui.card().classes("p-card"):
                groups = table([("name", "group", "left"), ("messages", "dead letters")], "name").props(
                    'no-data-label="No group has any."'
                )

            async def refresh() -> None:
                found = await console.finder.dead_letter_groups()
                groups.rows = [
                    {"name": group, "link": formatting.path("dead-letters", group), "messages": formatting.count(count)}
                    for group, count in sorted(found.items(), key=lambda each: (-each[1], each[0]))
                    if count
                ]

            every(5.0, refresh)

    @ui.page("/dead-letters/{group}")
    async def of_group(group: str) -> None:
        with frame(console, f"Dead letters of {group}", "Dead letters"):
            await _one(console, group)


async def _one(console: Console, group: str) -> None:
    letters: dict[str, ReceivedMessage] = {}
    with ui.element("div").classes("p-row"):
        title(f"Dead letters of {group}", f"The newest {_SHOWN}; they stay here until their files expire.")
        ui.space()
        to_topic = ui.switch("to all groups of the topic").tooltip(
            f"Otherwise only {group} gets them, as a retry that begins anew."
        )
        again = ui.button("Send again", icon="replay").props("unelevated no-caps")
    with ui.card().classes("p-card"):
        shown = table(list_columns(), "key", selection="multiple", pagination=25).props(
            'no-data-label="There are none." data-mark=letters wrap-cells'
        )

    async def load() -> None:
        with telling():
            found = await console.finder.dead_letters(group, _SHOWN)
            letters.update({each.offset_msg_id: each for each in found})
            shown.rows = [list_row(each) for each in found]

    async def resend() -> None:
        chosen = [letters[row["key"]] for row in shown.selected if row["key"] in letters]
        if not chosen:
            ui.notify("Choose some first.", type="warning")
            return
        whom = "All groups of their topic get them." if to_topic.value else f"Only {group} gets them."
        question = f"Send {len(chosen)} dead letter{'s' if len(chosen) > 1 else ''} again?"
        if await ask(question, [whom, "They also stay here."], "Send again"):
            await tell(console.changes.resend(chosen, to_topic=bool(to_topic.value)))
            shown.selected.clear()
            await load()

    again.on_click(resend)
    with telling():
        if any(row.name == f"%DLQ%{group}" for row in await console.view.topics()):
            await load()
