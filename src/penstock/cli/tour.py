"""`penstock tour`: the store in a minute. Every step says what it does and checks what came of it."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import exits
from penstock.cli.inspection import inspect
from penstock.cli.messages import message_line
from penstock.cli.opening import open_view
from penstock.cli.options import option
from penstock.cli.output import say, write
from penstock.cli.store_info import show_info
from penstock.errors import BadStore
from penstock.store import GetStatus, Message, MessageStore, PutResult, Record, Settings

_TOPIC = "orders"
_QUEUES = 3
_ORDERS = 6
_STEPS = ("created", "paid")  # each order is two messages: the second has the same key and another tag
_IN_A_QUEUE = _ORDERS * len(_STEPS) // _QUEUES


class _StepFailed(Exception):
    """A step did not do what it was to show."""


def tour(
    folder: Annotated[Path | None, option("--dir", "DIR", "Make the store here and keep it.")] = None,
) -> None:
    """A short tour of the store.

    Makes a small store, puts orders, gets, queries and looks them up, closes it and opens it again. Exits with 1 if a
    step does not check out.

    Examples:

    \b
      penstock tour
      penstock tour --dir data/tour
    """
    with _place(folder) as root:
        try:
            _walk(root)
        except _StepFailed as failed:
            say(f"the tour stopped: {failed}.")
            raise typer.Exit(exits.PROBLEM) from None
        _farewell(root, kept=folder is not None)


@contextlib.contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="penstock-tour-") as made:
            yield Path(made) / "store"
        return
    if folder.exists() and any(folder.iterdir()):
        raise BadStore("the tour makes a new store; name a folder that is empty or not there yet", path=folder)
    yield folder


def _walk(root: Path) -> None:
    _step(f"Open a store with small files in {root}")
    with MessageStore.open(root, Settings.dev()) as store:
        last = _put(store)
        _get(store)
        _query(store)
        _look_up(store, last)
        _step("Close it: everything is on disk now")
    _reopen(root)
    _look_from_outside(root)


def _put(store: MessageStore) -> PutResult:
    _step(f"Put {_ORDERS} orders into {_QUEUES} queues, first created, then paid, each with its key and tag")
    for tag in _STEPS:
        for number in range(_ORDERS):
            body = f'{{"order": {number}, "state": "{tag}"}}'.encode()
            ack = store.put(Message(_TOPIC, body, keys=(f"order_{number}",), tags=tag, queue_id=number % _QUEUES))
            _check(ack.ok, f"a put was refused: {ack.status.value} {ack.reason}")
    _tell(f"the last one: {ack.status.value}, {ack.size} bytes at {ack.physical_offset}, id {ack.msg_id}")
    return ack


def _get(store: MessageStore) -> None:
    _step("Get a page of queue 1, only what is tagged paid")
    page = store.get(_TOPIC, queue_id=1, offset=0, max_messages=32, tags="paid")
    _tell(f"{page.status.value}, go on at {page.next_begin_offset}")
    _tell_messages(page.messages)
    _check(page.status is GetStatus.FOUND and page.next_begin_offset == _IN_A_QUEUE, "the page is not complete")
    _check([message.keys for message in page.messages] == [("order_1",), ("order_4",)], "the filter let others pass")


def _query(store: MessageStore) -> None:
    _step("Ask the index for everything about order_1")
    found = store.query(_TOPIC, "order_1")
    _tell_messages(found)
    _check([message.tags for message in found] == list(_STEPS), "the query did not find both messages")


def _look_up(store: MessageStore, ack: PutResult) -> None:
    _step("Look a message up by the id that its put answered")
    found = store.look_up_id(ack.msg_id)
    _check(found is not None and found.queue_offset == ack.queue_offset, "the id leads elsewhere")
    _tell_messages([found] if found else [])


def _reopen(root: Path) -> None:
    _step("Open it again and go on")
    with MessageStore.open(root, Settings.dev()) as store:
        _check(store.report.clean_exit, "the store was not closed cleanly")
        ack = store.put(Message(_TOPIC, b'{"order": 6, "state": "created"}', keys=("order_6",), tags="created"))
        _check(ack.ok and ack.queue_offset == _IN_A_QUEUE, "queue 0 does not go on where it ended")
        _tell(f"the next message of queue 0 has offset {ack.queue_offset}")


def _look_from_outside(root: Path) -> None:
    _step(f"Look at it from outside: penstock store info {root}")
    with open_view(root, None, None) as view:
        found = inspect(view)
    show_info(found)
    _check(found["last_exit"] == "clean", "the store was not closed cleanly")
    _check(sum(topic["count"] for topic in found["topics"]) == _ORDERS * len(_STEPS) + 1, "messages are missing")


def _farewell(root: Path, *, kept: bool) -> None:
    if not kept:
        write("That was it; the folder is gone. Keep one to play with: penstock tour --dir data/tour\n")
        return
    _step("Try next")
    for verb, options in (
        ("dump", "--json"),
        ("log", "--no-body"),
        ("get", f"--topic {_TOPIC} --queue 1 --offset 0 --tags 'created || paid'"),
        ("query", f"--topic {_TOPIC} --key order_1"),
        ("conf", "--json"),
    ):
        _tell(f"penstock store {verb} {shlex.quote(str(root))} {options}")


def _step(title: str) -> None:
    write(f"* {title}\n")


def _tell(text: str) -> None:
    write(f"    {text}\n")


def _tell_messages(messages: Sequence[Record]) -> None:
    for message in messages:
        _tell(message_line(message))


def _check(done: bool, otherwise: str) -> None:
    if not done:
        raise _StepFailed(otherwise)
