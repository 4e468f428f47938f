"""`penstock produce` and `penstock consume`, against a real broker."""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import ENVIRONMENT, PENSTOCK, Ran, hear_interrupts

from penstock.testing import LocalBroker, broker

if TYPE_CHECKING:
    from cli.conftest import Run

Penstock = Callable[..., Ran]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def b() -> Iterator[LocalBroker]:
    """One broker for all tests here; each has a topic of its own."""
    with broker() as running:
        yield running


@pytest.fixture
def penstock(run: Run, b: LocalBroker) -> Penstock:
    """Runs a verb against the broker."""
    return lambda *arguments: run(*arguments, "-n", b.namesrv)


@pytest.fixture
def topic(b: LocalBroker) -> str:
    name = f"lines-{next(_numbers)}"
    with b.admin() as admin:
        admin.topics.create(name, queues=4)
    return name


@pytest.fixture
def start(b: LocalBroker) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a verb as a process of its own, with pipes."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [*PENSTOCK, *map(str, arguments), "-n", b.namesrv]
        started.append(
            subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT, preexec_fn=hear_interrupts
            )
        )
        return started[-1]

    yield start
    for each in started:
        with each:
            each.kill()


def bodies(ran: Ran) -> list[str]:
    return [each["body_text"] for each in ran.done().objects]


# -- produce ---------------------------------------------------------------------------------------------------


def test_a_text_is_sent_with_its_key_tag_and_headers(penstock: Penstock, topic: str) -> None:
    sent = penstock("produce", topic, "two shirts", "--key", "o1", "--key", "all", "--tag", "paid", "-H", "a=b=c")
    assert sent.done().out.startswith(f"sent 1 message to topic {topic}, queue ")
    (found,) = penstock("consume", topic, "--json").done().objects
    assert found["body_text"] == "two shirts"
    assert {"KEYS": "o1 all", "TAGS": "paid", "a": "b=c"}.items() <= found["properties"].items()


def test_the_lines_of_stdin_are_messages(
    penstock: Penstock, start: Callable[..., subprocess.Popen[str]], topic: str
) -> None:
    out, err = start("produce", topic).communicate("one\ntwo\n\nthree", timeout=60)
    assert (out, err) == (f"sent 3 messages to topic {topic}\n", "")
    assert bodies(penstock("consume", topic, "--json")) == ["one", "two", "three"]
    out, _ = start("produce", topic, "--count", 2, "--json").communicate("four\nfive\nsix\n", timeout=60)
    assert out.count("SEND_OK") == 2
    assert bodies(penstock("consume", topic, "--json")) == ["one", "two", "three", "four", "five"]


def test_files_are_sent_whole_and_repeated(penstock: Penstock, topic: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb\n")
    two.write_bytes(b"\xff\x00")
    penstock("produce", topic, "--file", one, "--file", two, "--count", 3, "--rate", 1000).done()
    assert bodies(penstock("consume", topic, "--json")) == ["a\nb\n", None, "a\nb\n"]


def test_a_sharding_key_keeps_the_order_in_one_queue(
    penstock: Penstock, start: Callable[..., subprocess.Popen[str]], topic: str
) -> None:
    start("produce", topic, "--sharding-key", "k").communicate("\n".join(map(str, range(50))), timeout=60)
    found = penstock("consume", topic, "--json").done().objects
    assert [each["body_text"] for each in found] == [str(each) for each in range(50)]
    assert len({each["queue_id"] for each in found}) == 1


def test_an_interrupt_ends_produce_while_it_waits_for_input(
    start: Callable[..., subprocess.Popen[str]], topic: str
) -> None:
    producing = start("produce", topic, "--json")
    assert producing.stdin is not None
    assert producing.stdout is not None
    producing.stdin.write("one\n")
    producing.stdin.flush()
    assert "SEND_OK" in producing.stdout.readline()
    producing.send_signal(signal.SIGINT)
    assert producing.wait(60) == 130
    assert producing.stderr is not None
    assert producing.stderr.read() == "penstock: interrupted; sent 1 message.\n"


def test_a_send_that_fails_ends_produce_with_what_was_sent(penstock: Penstock, topic: str, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"small")
    large.write_bytes(b"0" * (4 << 20) + b"0")
    assert "more than 4194304 bytes" in penstock("produce", topic, "--file", small, "--file", large).refused()
    penstock("topic", "create", topic, "--perm", 4).done()
    assert "no writable queue" in penstock("produce", topic, "refused").err


# -- consume ---------------------------------------------------------------------------------------------------


def test_messages_of_all_queues_are_printed_in_the_order_of_the_log(penstock: Penstock, topic: str) -> None:
    for tag in "ab":
        penstock("produce", topic, "text", "--tag", tag, "--count", 6).done()
    offsets = [each["physical_offset"] for each in penstock("consume", topic, "--json").done().objects]
    assert offsets == sorted(offsets)
    assert len(offsets) == 12
    lines = penstock("consume", topic, "--tags", "b", "--format", r"{topic}\t{tag:>3}|{body}").done().out.splitlines()
    assert lines == [f"{topic}\t  b|text"] * 6
    assert penstock("consume", topic, "--from", "end").done().out == ""
    assert penstock("consume", topic, "--from", "2020-01-01T00:00:00", "--count", 1).done().out.count("\n") == 1
    assert penstock("consume", topic, "--from", "now").done().out == ""


def test_followed_messages_come_as_they_are_sent_until_an_interrupt(
    penstock: Penstock, start: Callable[..., subprocess.Popen[str]], topic: str
) -> None:
    penstock("produce", topic, "old").done()
    following = start("consume", topic, "-f", "--format", "{body}")
    assert following.stdout is not None
    assert following.stdout.readline() == "old\n"
    for body in ("new", "newer"):
        penstock("produce", topic, body).done()
        assert following.stdout.readline() == f"{body}\n"
    following.send_signal(signal.SIGINT)
    assert following.wait(60) == 130
    assert following.stderr is not None
    assert following.stderr.read() == ""


def test_what_a_group_was_shown_is_consumed(penstock: Penstock, topic: str) -> None:
    group = f"group-of-{topic}"
    penstock("produce", topic, "text", "--count", 7).done()
    first = penstock("consume", topic, "--group", group, "--count", 3, "--json").done().objects
    second = penstock("consume", topic, "--group", group, "--count", 4, "--json").done().objects
    assert len({each["msg_id"] for each in (*first, *second)}) == 7
    assert penstock("group", "progress", group, "--json").done().json["lag"] == 0


# -- what does not work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("produce", "TOPIC", "text", "-H", "nothing"), "-H 'nothing': it must be NAME=VALUE"),
        (("produce", "TOPIC", "text", "--rate", "0"), "--rate 0: it must be above 0"),
        (("produce", "TOPIC", "text", "--count", "0"), "0 is out of range"),
        (("produce", "TOPIC", "text", "--file", "also"), "a text or --file, not both"),
        (("produce", "TOPIC", "--file", "/nowhere"), "/nowhere: No such file"),
        (("produce", "no topic", "text"), "no topic"),
        (("produce",), "TOPIC is missing"),
        (("consume", "TOPIC", "--format", "{bodi}"), "did you mean 'body'?"),
        (("consume", "TOPIC", "--format", "{body"), "--format cannot be read"),
        (("consume", "TOPIC", "--format", "{body!r}"), "may have a width"),
        (("consume", "TOPIC", "--format", "{body}", "--json"), "--json or --format, not both"),
        (("consume", "TOPIC", "--from", "never"), "not a valid time"),
        (("consume", "TOPIC-"), "did you mean 'TOPIC'?"),
        (("consume", "nothing-like-it"), "see `penstock topic list`"),
    ],
)
def test_what_does_not_work_is_one_sentence(
    penstock: Penstock, topic: str, call: tuple[str, ...], sentence: str
) -> None:
    words = [each.replace("TOPIC", topic) for each in call]
    assert sentence.replace("TOPIC", "TOPIC" if call == ("produce",) else topic) in penstock(*words).refused()


@pytest.mark.parametrize("call", [("produce", "t", "text"), ("consume", "t"), ("consume", "t", "-g", "g")])
def test_a_cluster_that_is_not_there_is_one_sentence(run: Run, call: tuple[str, ...]) -> None:
    assert "Cannot reach name server" in run(*call, "-n", "127.0.0.1:1").refused()
    assert "must be HOST:PORT" in run(*call, "-n", "nowhere").refused()


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (("group", "progress", "G", "-t", "T"), ("G", "T")),
        (("offset", "show", "T"), ("T",)),
        (("offset", "clone", "T", "--from", "G", "--to", "G"), ("T",)),
    ],
)
def test_names_may_be_given_by_position_or_by_option(
    penstock: Penstock, topic: str, call: tuple[str, ...], names: tuple[str, ...]
) -> None:
    group = f"group-of-{topic}"
    penstock("group", "update", group).done()
    words = [{"T": topic, "G": group}.get(each, each) for each in call]
    penstock(*words).done()
    assert "unexpected extra argument" in penstock(*words, "more", "names", "than", "it", "takes").refused()
    if "-t" not in words:
        assert "one name too many" in penstock(*words, "-t", topic).refused()
