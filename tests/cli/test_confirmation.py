"""Deletes and resets: what does not exist is refused, a terminal is asked, --dry-run changes nothing."""

from __future__ import annotations

import itertools
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cli.conftest import ENVIRONMENT, PENSTOCK, Ran, hear_interrupts

from penstock.client.sync import Message, Producer
from penstock.testing import LocalBroker, broker

if TYPE_CHECKING:
    from cli.conftest import Run

Penstock = Callable[..., Ran]
_numbers = itertools.count()


class Place(NamedTuple):
    """A topic of two queues with ten messages, and a group that has consumed four of them."""

    topic: str
    group: str


@pytest.fixture(scope="module")
def b() -> Iterator[LocalBroker]:
    """One broker for all tests here; each has a topic and a group of its own."""
    with broker() as running:
        yield running


@pytest.fixture
def penstock(run: Run, b: LocalBroker) -> Penstock:
    """Runs a verb against the broker."""
    return lambda *arguments: run(*arguments, "-n", b.namesrv)


@pytest.fixture
def place(penstock: Penstock, b: LocalBroker) -> Place:
    number = next(_numbers)
    found = Place(f"orders-{number}", f"warehouse-{number}")
    penstock("topic", "create", found.topic, "-r", 2, "-w", 2).done()
    penstock("group", "update", found.group).done()
    with Producer("shop", b.namesrv) as producer:
        for queue in producer.queues(found.topic) * 5:
            producer.send(Message(found.topic, b"text"), queue=queue)
    for queue in (0, 1):
        penstock("offset", "set", found.group, found.topic, "-b", "broker-a", "-i", queue, "--to", 2).done()
    return found


def committed(penstock: Penstock, place: Place) -> list[int]:
    rows = penstock("offset", "show", place.topic, "-g", place.group, "--json").done().json
    return [row["committed"] for row in rows]


def at_a_terminal(b: LocalBroker, words: tuple[str, ...], answer: str | None) -> tuple[int, str]:
    """Runs a verb at a terminal and answers its question; None is Ctrl-C. Returns status and stderr."""
    ours, theirs = pty.openpty()
    command = [*PENSTOCK, *words, "-n", b.namesrv]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=theirs, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT, preexec_fn=hear_interrupts
    ) as running:
        assert running.stderr is not None
        said = ""
        while not said.endswith("[y/N] "):
            character = running.stderr.read(1)
            assert character, said
            said += character
        if answer is None:
            running.send_signal(signal.SIGINT)
        else:
            os.write(ours, f"{answer}\n".encode())
        said += running.stderr.read()
    os.close(ours)
    os.close(theirs)
    return running.returncode, said


def calls(place: Place) -> dict[str, tuple[str, ...]]:
    return {
        "topic": ("topic", "delete", place.topic),
        "group": ("group", "delete", place.group),
        "reset": ("offset", "reset", place.group, place.topic, "--to", "0"),
        "skip": ("offset", "skip", place.group, place.topic),
        "set": ("offset", "set", place.group, place.topic, "-b", "broker-a", "-i", "0", "--to", "5"),
    }


def state(penstock: Penstock, place: Place) -> tuple[bool, bool, list[int]]:
    """Whether the topic and the group exist, and the group's offsets."""
    topics = penstock("topic", "list", "--names", "--json").done().json
    groups = [each["groupName"] for each in penstock("group", "list", "--json").done().json]
    has_topic = place.topic in topics
    return has_topic, place.group in groups, committed(penstock, place) if has_topic else []


@pytest.mark.parametrize("verb", ["topic", "group", "reset", "skip"])
def test_a_dry_run_says_what_would_happen_and_changes_nothing(penstock: Penstock, place: Place, verb: str) -> None:
    before = state(penstock, place)
    text = penstock(*calls(place)[verb], "--dry-run").done().out
    found = penstock(*calls(place)[verb], "--dry-run", "--json").done().json
    assert state(penstock, place) == before == (True, True, [2, 2])
    if verb == "topic":
        assert text == (
            f"topic {place.topic}: 2 queues with 10 messages, consumed by {place.group} (lag 6); nothing was changed\n"
        )
        assert found == {"topic": place.topic, "queues": 2, "messages": 10, "groups": {place.group: 6}}
    elif verb == "group":
        assert "0 connected clients, lag 6; 0 dead letters; nothing was changed" in text
        assert found == {"group": place.group, "lag": 6, "dead_letters": 0, "clients": 0}
    else:
        again, skipped = (4, 0) if verb == "reset" else (0, 6)
        assert text.endswith(f"{again} messages would be delivered again, {skipped} skipped\n")
        assert sum(each["repeated"] for each in found) == again
        assert sum(each["skipped"] for each in found) == skipped


def test_a_dry_run_of_one_offset_or_of_a_copy(penstock: Penstock, place: Place) -> None:
    one = ("offset", "set", place.group, place.topic, "-b", "broker-a", "-i", 0, "--to", 5, "--dry-run")
    assert penstock(*one).done().out.endswith("0 messages would be delivered again, 3 skipped\n")
    copy = ("offset", "clone", place.group, f"{place.group}-2", place.topic, "--dry-run", "--json")
    assert [(each["current"], each["target"]) for each in penstock(*copy).done().json] == [(None, 2), (None, 2)]
    assert state(penstock, place) == (True, True, [2, 2])
    groups = [each["groupName"] for each in penstock("group", "list", "--json").done().json]
    assert f"{place.group}-2" not in groups


def test_a_dry_run_of_an_entry_deletes_nothing(penstock: Penstock) -> None:
    penstock("cluster", "put-kv", "kept", "a", "1").done()
    delete = ("cluster", "delete-kv", "kept", "a", "--dry-run")
    assert penstock(*delete).done().out == "kept/a=1; nothing was changed\n"
    assert penstock(*delete, "--json").done().json == {"namespace": "kept", "key": "a", "value": "1"}
    assert penstock("cluster", "kv", "kept", "--json").done().json == {"a": "1"}


def test_a_dry_run_without_force_skips_nothing(penstock: Penstock, place: Place) -> None:
    found = penstock(*calls(place)["skip"], "--force", "false", "--dry-run", "--json").done().json
    assert [(each["target"], each["skipped"]) for each in found] == [(2, 0), (2, 0)]


@pytest.mark.parametrize("verb", ["topic", "group", "reset", "skip", "set"])
def test_a_terminal_is_asked(penstock: Penstock, b: LocalBroker, place: Place, verb: str) -> None:
    before = state(penstock, place)
    status, said = at_a_terminal(b, calls(place)[verb], "no")
    assert (status, state(penstock, place)) == (2, before)
    assert said.endswith("penstock: nothing was changed.\n")
    assert at_a_terminal(b, calls(place)[verb], "y")[0] == 0
    assert state(penstock, place) != before


def test_an_interrupt_at_the_question_changes_nothing(penstock: Penstock, b: LocalBroker, place: Place) -> None:
    assert at_a_terminal(b, calls(place)["topic"], None)[0] == 130
    assert state(penstock, place) == (True, True, [2, 2])


def test_yes_answers_the_question(penstock: Penstock, place: Place) -> None:
    for verb in ("skip", "reset", "group", "topic"):
        penstock(*calls(place)[verb], "--yes").done()
    assert state(penstock, place) == (False, False, [])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("topic", "delete", "TOPICx"), "no broker has topic 'TOPICx'; did you mean 'TOPIC'?"),
        (("topic", "delete", "TOPIC", "-c", "nowhere"), "nowhere"),
        (("topic", "delete", "like-nothing"), "see `penstock topic list`"),
        (("group", "delete", "GROUPx"), "no broker knows group 'GROUPx'; did you mean 'GROUP'?"),
        (("offset", "reset", "GROUP", "TOPICx", "--to", "0"), "did you mean 'TOPIC'?"),
        (("offset", "reset", "GROUPx", "TOPIC", "--to", "0"), "did you mean 'GROUP'?"),
        (("offset", "skip", "GROUPx", "TOPIC"), "did you mean 'GROUP'?"),
        (("offset", "set", "GROUP", "TOPIC", "-b", "broker-a", "-i", "9", "--to", "1"), "has no queue 9 at broker"),
        (("offset", "set", "GROUPx", "TOPIC", "-b", "broker-a", "-i", "0", "--to", "1"), "did you mean 'GROUP'?"),
        (("offset", "clone", "GROUPx", "other", "TOPIC"), "did you mean 'GROUP'?"),
        (("cluster", "delete-kv", "mine", "nothing"), "namespace 'mine' has no key 'nothing'"),
        (("cluster", "wipe-write-perm", "broker-b"), "there is no broker 'broker-b'; did you mean 'broker-a'?"),
        (("cluster", "add-write-perm", "broker-b"), "there is no broker 'broker-b'; did you mean 'broker-a'?"),
    ],
)
def test_what_does_not_exist_is_refused(penstock: Penstock, place: Place, call: tuple[str, ...], sentence: str) -> None:
    def named(text: str) -> str:
        return text.replace("TOPIC", place.topic).replace("GROUP", place.group)

    assert named(sentence) in penstock(*map(named, call)).refused()
    assert state(penstock, place) == (True, True, [2, 2])
