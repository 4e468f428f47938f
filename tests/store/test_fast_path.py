"""The compiled short ways into the log and out of it give the same bytes and answers as the general paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import running_on
from support.stores import StoreHome

from penstock.format import kernels
from penstock.store import Message, MessageStore, Page, PutResult, PutStatus, Settings
from penstock.store.message import GetStatus

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12)
MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["orders", "payments"]),
    body=st.binary(max_size=300),
    keys=st.one_of(TEXT, st.lists(TEXT, max_size=3).map(tuple), st.lists(TEXT, max_size=2)),
    tags=TEXT,
    properties=st.dictionaries(TEXT, TEXT, max_size=3),
    queue_id=st.integers(0, 2),
    delay_level=st.sampled_from([0, 0, 0, 3]),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, 1, 0x4, 0x8, 0xC, 0x30]),
    born_timestamp=st.integers(0, 2**62),
    born_host=st.sampled_from(["127.0.0.1:0", "10.0.0.7:1234", "[1050::5:600:300c:326b]:1"]),
    store_host=st.sampled_from(["", "10.0.0.1:10911"]),
    reconsume_times=st.integers(0, 20),
    prepared_transaction_offset=st.integers(0, 2**40),
    wait=st.sampled_from([True, True, False]),
)
READY = st.builds(
    Message,
    topic=st.sampled_from(["orders", "payments"]),
    body=st.binary(max_size=300),
    tags=st.sampled_from(["", "", "", "t"]),
    born_host=st.sampled_from(["127.0.0.1:0", "10.0.0.7:1234"]),
    property_text=st.one_of(
        st.sampled_from(["TAGS\x01a", "DELAY\x013\x02TAGS\x01a\x02", "\ud800", "bytes\x01\udc80", "é\x01中文"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    ),
    wait=st.sampled_from([True, True, False]),
)
MESSAGES = st.one_of(MESSAGES, READY)
STEPS = st.lists(st.one_of(MESSAGES, st.lists(MESSAGES, max_size=5)), max_size=25)

pytestmark = pytest.mark.skipif(kernels.active != "compiled", reason="without a compiler there is no short way")


def run(folder: Path, steps: list[Any], kernel: str) -> tuple[list[PutResult | object], list[bytes], int]:
    """Puts singles and batches; returns the answers, the log's bytes, and how many took the short way."""
    ticks = iter(range(1_700_000_000_000, 1_800_000_000_000))
    with running_on(kernel):
        with MessageStore.open(folder, Settings.dev(), clock=lambda: next(ticks) // 1_000_000 * 1_000_000) as store:
            answers: list[Any] = [store.put_many(step) if isinstance(step, list) else store.put(step) for step in steps]
            short = store.log.appender.count
        return answers, [path.read_bytes() for path in sorted(folder.glob("commitlog/*"))], short


@given(STEPS)
@settings(max_examples=60)
def test_both_ways_leave_the_same_log(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    # Each message once before: the short way takes only topics and hosts that it knows.
    known = [step[0] if isinstance(step, list) and step else step for step in steps]
    steps = [step for step in known if isinstance(step, Message)] + steps
    folder = tmp_path_factory.mktemp("ways")
    short, short_log, _ = run(folder / "short", steps, "compiled")
    general, general_log, none = run(folder / "general", steps, "plain")
    assert none == 0
    assert short == general
    assert short_log == general_log


def test_ordinary_messages_take_the_short_way(tmp_path: Path) -> None:
    message = Message("orders", b"x", keys=("a", "b"), tags="t", properties={"colour": "blue"})
    answers, _, short = run(tmp_path, [message] * 10 + [[message] * 8] * 2, "compiled")
    assert short == 9 + 16
    assert all(answer.status is PutStatus.PUT_OK for answer in answers)


def test_a_batch_with_one_bad_message_leaves_nothing_behind(tmp_path: Path) -> None:
    good, bad = Message("orders", b"x" * 100), Message("orders", b"x", properties={"a\x01": "b"})
    with MessageStore.open(tmp_path, Settings.dev()) as store:
        assert store.put(good).ok
        end = store.log.max_offset
        assert store.put_many([good, good, bad]).status is PutStatus.MESSAGE_ILLEGAL
        assert store.log.max_offset == end
        assert not any(store.log.queue.files[0].map.view[end : end + 4096])
        assert store.put(good).queue_offset == 1


def test_a_committed_message_in_a_batch_is_refused(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, Settings.dev()) as store:
        assert store.put(Message("orders", b"x")).ok
        result = store.put_many([Message("orders", b"x"), Message("orders", b"x", sys_flag=0x8)])
    assert result.status is PutStatus.MESSAGE_ILLEGAL


def test_properties_in_their_stored_form_are_stored_as_they_are(tmp_path: Path) -> None:
    text = "DELAY\x013\x02TAGS\x01a\x02"
    message = Message("orders", b"x", property_text=text)
    answers, (log, *_), short = run(tmp_path, [message] * 2, "compiled")
    assert short == 1
    assert [answer.queue_offset for answer in answers] == [0, 1]
    assert log.count(text.encode()) == 2


def test_properties_come_in_one_form_only(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, Settings.dev()) as store:
        result = store.put(Message("orders", b"x", tags="a", property_text="TAGS\x01a"))
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert "not both" in result.reason


# -- out of the log ------------------------------------------------------------------------------------------


def both_pages(
    store: MessageStore, queue_id: int, offset: int, most: int, tags: str | None = None
) -> tuple[Page, Page]:
    """The page by the short way if that takes it, and the page by the general path."""
    getter = store.pages
    short = store.get("orders", queue_id, offset, most, tags)
    getter._tries_at_once = False
    general = store.get("orders", queue_id, offset, most, tags)
    getter._tries_at_once = True
    return short, general


def check_known_page(store: MessageStore, queue_id: int, offset: int, most: int, expected: Page) -> None:
    """A page for pulls, if the kernel takes it, is that of the general path; and it takes no other."""
    pages = store.pages.pages_of("orders", queue_id, False)
    found = None if pages is None else pages.read(offset, most)
    if found is None:
        return
    bounds = expected.next_begin_offset, expected.min_offset, expected.max_offset
    assert (expected.status, expected.damaged) == (GetStatus.FOUND, ())
    assert found == (expected.data, *bounds, expected.count)


def test_pages_for_pulls_end_with_what_may_be_read_and_with_their_queue(home: StoreHome) -> None:
    store = home.open()
    for _ in range(5):
        store.put(Message("orders", b"x"))
    store.catch_up()
    every, flushed = (store.pages.pages_of("orders", 0, only_flushed) for only_flushed in (False, True))
    assert every is not None
    assert flushed is not None
    found = every.read(1, 3)
    assert found is not None
    assert found[1:] == (4, 0, 5, 3)
    assert every.read(5, 1) is None
    assert store.pages.pages_of("orders", 1, False) is None
    assert store.pages.pages_of("unknown", 0, False) is None
    store.delete_topic("orders")
    assert every.read(0, 1) is None
    assert flushed.read(0, 1) is None


def test_both_ways_read_the_same_pages(home: StoreHome) -> None:
    sizes = {"mapped_file_size_commit_log": 4000, "mapped_file_size_consume_queue": 9 * 20}
    store = home.open(**sizes)
    placed = [
        store.put(Message("orders", bytes(number % 50), tags="ab"[number % 2], queue_id=number % 3))
        for number in range(120)
    ]
    store.catch_up()
    home.flip(home.log_files()[0], placed[9].physical_offset + 40)
    home.flip(home.log_files()[1], placed[50].physical_offset - 4000 + 5)
    home.write(home.queue_files("orders", 2)[0], 2 * 20, (1 << 63).to_bytes(8, "big"))
    for dropped in (False, True):
        assert not dropped or store.log.queue.drop_first()
        for queue_id in range(4):
            for offset in (-1, *range(42), 2**63, 2**70):
                for most in (0, 1, 3, 32, 2000):
                    for tags in (None, "a", "a || c", "none"):
                        short, general = both_pages(store, queue_id, offset, most, tags)
                        assert short == general, (queue_id, offset, most, tags)
                        if tags is None and -1 <= offset < 2**63:
                            check_known_page(store, queue_id, offset, most, general)


def test_the_usual_page_takes_the_short_way_and_one_over_two_files_does_not(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4000)
    ends = [store.put(Message("orders", b"x" * 100)).end_offset for _ in range(40)]
    in_first = sum(end < 4000 for end in ends)

    store.catch_up()
    queue, log = store.queues.find("orders", 0), store.log.queue
    assert queue is not None
    unit_files, log_files = queue.files.files, log.files

    def at_once(offset: int, most: int) -> Page | None:
        return store.pages._pages.try_page(
            *(unit_files, 0, offset, b"orders", 0, log_files, log.file_size, ends[-1], most),
            *(None, (), log.written_from),
        )

    assert at_once(0, in_first) == store.get("orders", 0, 0, in_first)
    assert at_once(in_first, 3) == store.get("orders", 0, in_first, 3)
    assert at_once(0, 32) is None
    assert store.get("orders", 0, 0, 32).count == 32
    assert at_once(40, 1) is None
    store.close()
    assert at_once(0, 1) is None, "a file that is unmapped is not read"


def test_the_store_has_few_enough_attributes_to_be_read_fast(home: StoreHome) -> None:
    """From 30 attributes on, CPython 3.11 no longer shares an object's keys: each put then takes 6 % more CPU."""
    store = home.open()
    assert len(vars(store)) < 30
    assert store._put_path is not None
    assert len(vars(store._put_path)) < 30
