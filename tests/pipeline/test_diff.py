"""The job `diff`: each kind of difference is found where it was planted, and nothing else is."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.pipeline import send
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.client.message import Message as Sent
from penstock.errors import BadSettings, BadStore
from penstock.pipeline.jobs.diff import Difference, MessagePosition, Sides, diff_here
from penstock.pipeline.jobs.diff.compare import Leftover, pair_up
from penstock.pipeline.jobs.job_input import JobInput
from penstock.store import Message
from penstock.testing import LocalBroker


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    return StoreHome(tmp_path / "a")


@pytest.fixture
def other(tmp_path: Path) -> StoreHome:
    return StoreHome(tmp_path / "b")


def sides(a: StoreHome, b: StoreHome, **more: Any) -> Sides:
    return Sides(a=JobInput(stores=(str(a.path),)), b=JobInput(stores=(str(b.path),)), **more)


def orders(count: int) -> list[Message]:
    return [
        Message(
            f"T{number % 2}",
            b"%d" % number * 20,
            queue_id=number // 2 % 3,
            tags="red",
            born_timestamp=1_500_000_000_000 + number,
            properties={"UNIQ_KEY": f"u{number}"} if number % 4 else {},
        )
        for number in range(count)
    ]


def put(home: StoreHome, messages: list[Message], **settings: Any) -> None:
    with home.open(**{"mapped_file_size_commit_log": 65_536, **settings}) as store:
        for message in messages:
            assert store.put(message).ok


def test_copies_are_the_same_whatever_their_files_are_like(home: StoreHome, other: StoreHome) -> None:
    put(home, orders(600))
    other.clock.now += 5000  # stored later, which is no difference
    put(other, [Message("elsewhere", b"x" * 40_000)])
    put(other, orders(600))
    found = diff_here(sides(home, other, topics=("T0", "T1")))
    assert found.same
    assert (found.examples, [queue.same for queue in found.queues]) == ([], [100] * 6)
    assert not diff_here(sides(home, other)).same, "a queue that only one side has is a difference"


def test_every_planted_difference_is_found_and_no_other(home: StoreHome, other: StoreHome) -> None:
    messages = [Message("T", b"%d" % n, properties={"UNIQ_KEY": f"u{n}", "n": str(n)}) for n in range(100)]
    put(home, messages)
    messages[7] = Message("T", b"changed", properties={"UNIQ_KEY": "u7"})
    messages[11] = Message("T", b"another one", properties={"UNIQ_KEY": "v"})
    messages[20], messages[21] = messages[21], messages[20]
    put(other, messages)
    found = diff_here(sides(home, other))
    assert not found.same
    assert found.queues[0].counts == {"different": 2, "moved": 2}
    assert found.queues[0].same == 96
    assert [(each.kind, each.a, each.b, each.unique_key) for each in found.examples] == [
        ("different", MessagePosition(0, 7), MessagePosition(0, 7), "u7"),
        ("different", MessagePosition(0, 11), MessagePosition(0, 11), "u11"),
        ("moved", MessagePosition(0, 20), MessagePosition(0, 21), "u20"),
        ("moved", MessagePosition(0, 21), MessagePosition(0, 20), "u21"),
    ]
    assert diff_here(sides(home, other), examples=1).examples == found.examples[:1]


def test_one_lost_message_is_one_difference_and_the_others_have_moved(home: StoreHome, other: StoreHome) -> None:
    messages = orders(600)
    put(home, messages)
    put(other, [*messages[:100], *messages[101:]])
    found = diff_here(sides(home, other))
    assert found.count("only_a") == 1
    (lost,) = [each for each in diff_here(sides(home, other), examples=1000).examples if each.kind == "only_a"]
    assert (lost.topic, lost.a, lost.b) == ("T0", MessagePosition(50 % 3, 50 // 3), None)
    assert (found.count("only_b"), found.count("different")) == (0, 0)
    assert found.count("moved") == 83, "all that came behind it in its queue"
    by_key = diff_here(sides(home, other, by="key"))
    assert (by_key.count("only_a"), by_key.count("only_b"), by_key.count("different")) == (1, 0, 0)
    assert [each.kind for each in by_key.examples] == ["only_a"], "elsewhere is the same to who compares by key"
    assert not by_key.same


@pytest.mark.parametrize("changes", [{"queue_id": 1}, {"born_timestamp": 5}, {"keys": ("k",)}])
def test_what_was_sent_again_is_the_same_by_key_only(
    changes: dict[str, Any], home: StoreHome, other: StoreHome
) -> None:
    bodies = [b"%d" % (number % 10) for number in range(60)]
    put(home, [Message("T", body, properties={"UNIQ_KEY": f"u{n}"}) for n, body in enumerate(bodies)])
    random.Random(3).shuffle(bodies)
    put(other, [Message("T", body, **changes, properties={"UNIQ_KEY": f"w{n}"}) for n, body in enumerate(bodies)])
    assert not diff_here(sides(home, other)).same
    assert diff_here(sides(home, other, by="key")).same == ("keys" not in changes)


def test_retention_and_a_side_that_is_behind_are_told_apart(home: StoreHome, other: StoreHome) -> None:
    messages = [Message("T", b"%04d" % number * 100) for number in range(900)]
    put(home, messages)
    with other.open(mapped_file_size_commit_log=65_536) as store:
        for message in messages[:800]:
            assert store.put(message).ok
    other.log_files()[0].unlink()
    found = diff_here(sides(home, other))
    (queue,) = found.queues
    assert queue.begins_later == queue.b[0] > 0  # type: ignore[index]
    assert (queue.behind, queue.counts) == (100, {})
    assert queue.same == 800 - queue.begins_later
    assert not found.same
    assert diff_here(sides(home, other, up_to_common_end=True)).same
    turned = diff_here(sides(other, home, up_to_common_end=True))
    assert (turned.same, turned.queues[0].behind, turned.queues[0].begins_later) == (True, -100, -queue.begins_later)


def test_what_cannot_be_read_is_told_with_its_place(home: StoreHome, tmp_path: Path) -> None:
    with home.open() as store:
        home.put_numbered(store, 20)
        place = store.queues.find("T", 0).unit(7)[0]  # type: ignore[union-attr]
    damaged = home.copy_to(tmp_path / "damaged")
    damaged.flip(damaged.log_files()[0], place + 90)
    found = diff_here(sides(home, damaged))
    assert found.queues[0].counts == {"unreadable_b": 1}
    (example,) = found.examples
    assert (example.a, example.b, example.what) == (
        MessagePosition(0, 7),
        MessagePosition(0, 7),
        "the record of queue offset 7 is damaged",
    )
    assert diff_here(sides(damaged, home)).count("unreadable_a") == 1
    assert not diff_here(sides(damaged, damaged)).same, "damaged messages cannot be called equal"


def test_empty_stores_and_such_that_are_not_there(home: StoreHome, other: StoreHome, tmp_path: Path) -> None:
    home.open().close()
    other.open().close()
    assert diff_here(sides(home, other)).same
    with home.open() as store:
        home.put_numbered(store, 3)
    assert not diff_here(sides(home, other)).same
    with pytest.raises(BadStore, match="there is no store here"):
        diff_here(sides(home, StoreHome(tmp_path / "none")))
    with pytest.raises(BadSettings, match="no topic 'x'"):
        diff_here(sides(home, other, topics=("x",)))


def test_it_equals_a_plain_comparison_on_random_stores(home: StoreHome, other: StoreHome) -> None:
    chance = random.Random(11)
    kept: dict[StoreHome, dict[tuple[int, int], bytes]] = {}
    for side in (home, other):
        offsets: Counter[int] = Counter()
        kept[side] = {}
        messages = []
        for number in range(400):
            body = b"%d" % number if chance.random() < 0.9 else chance.randbytes(3)
            messages.append(Message("T", body, queue_id=number % 5))
            kept[side][number % 5, offsets[number % 5]] = body
            offsets[number % 5] += 1
        put(side, messages)
    found = diff_here(sides(home, other), examples=1000)
    differing = {place for place in kept[home] if kept[home][place] != kept[other][place]}
    assert sum(queue.same for queue in found.queues) == 400 - len(differing)
    assert {(each.a.queue_id, each.a.queue_offset) for each in found.examples if each.a} == differing
    left, right = (Counter(kept[side].values()) for side in (home, other))
    by_key = diff_here(sides(home, other, by="key"))
    unequal = by_key.count("different") + by_key.count("only_a")
    assert unequal == (left - right).total() == by_key.count("different") + by_key.count("only_b")


def test_pairs_prefer_the_same_key_then_the_same_content_then_the_same_place() -> None:
    def row(side: str, offset: int, key: str, digest: str, edge: bool = False) -> Leftover:
        return Leftover(side, edge, "T", 0, offset, key, digest.encode(), "")

    found = pair_up(
        [
            *(row("a", 1, "k", "x"), row("a", 2, "", "y"), row("a", 3, "j", "z"), row("a", 4, "", "v")),
            *(row("b", 1, "l", "x"), row("b", 5, "k", "x"), row("b", 6, "", "y", edge=True)),
            *(row("b", 7, "j", "w"), row("b", 4, "", "u"), row("b", 9, "q", "q", edge=True)),
        ]
    )
    assert [(each.kind, each.a and each.a.queue_offset, each.b and each.b.queue_offset) for each in found] == [
        ("moved", 1, 5),
        ("only_b", None, 1),
        ("moved", 2, 6),
        ("different", 3, 7),
        ("different", 4, 4),
    ]


def test_a_store_and_the_cluster_it_was_sent_to(home: StoreHome, b: LocalBroker) -> None:
    send(b, [Sent("orders", b"%d" % number) for number in range(200)])
    put(home, [Message("orders", b"%d" % number) for number in range(199)])
    here = Sides(a=JobInput(stores=(str(home.path),)), b=JobInput(namesrv=b.namesrv), topics=("orders",), by="key")
    found = diff_here(here)
    assert (found.count("only_b"), found.count("only_a"), found.count("different")) == (1, 0, 0)
    with pytest.raises(BadSettings, match="a cluster shows none"):
        diff_here(Sides(a=here.a, b=here.b, by="bytes"))


def test_the_command_tells_people_and_programs(
    home: StoreHome, other: StoreHome, capsys: pytest.CaptureFixture[str]
) -> None:
    put(home, orders(60))
    put(other, orders(59))
    both = ["store", "diff", str(home.path), str(other.path)]
    assert main(both) == 1
    assert "B is 1 messages behind, in 1 queues" in capsys.readouterr().out
    assert main([*both, "--up-to-common-end"]) == 0
    assert "A and B are the same" in capsys.readouterr().out
    assert main([*both, "--json", "--by", "key"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["same"], document["examples"][0]["kind"]) == (False, "only_a")
    for arguments, expected in (
        ([str(home.path)], "compare with what?"),
        ([str(home.path), str(other.path), "--by", "size"], "must be one of place, key, bytes"),
        ([str(home.path), str(other.path) + "x"], "there is no store here"),
    ):
        assert main(["store", "diff", *arguments]) == 2
        assert expected in capsys.readouterr().err
    assert main(["store", "diff", str(home.path), str(home.path)]) == 0


def test_a_difference_knows_its_queue() -> None:
    assert Difference(kind="only_b", topic="T", b=MessagePosition(3, 9)).queue_id == 3
