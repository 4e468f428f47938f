"""One test or more for each status that a get can answer, with the offset at which to go on."""

from __future__ import annotations

import pytest
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.format.queue_unit import pack_unit
from penstock.format.record import Record, encode_record
from penstock.store import GetStatus, Message, MessageStore, Page

pytestmark = pytest.mark.usefixtures("kernels_name")

RECORD_SIZE = 100


def put_numbered(store: MessageStore, count: int, topic: str = "T", queue_id: int = 0, tags: str = "") -> None:
    """Messages whose body is their number."""
    for number in range(count):
        assert store.put(Message(topic, b"%d" % number, queue_id=queue_id, tags=tags)).ok


def put_sized(store: MessageStore, count: int, size: int = RECORD_SIZE) -> None:
    """Records of topic T of exactly this size."""
    for _ in range(count):
        assert store.put(Message("T", bytes(size - 92))).size == size


def outline(page: Page) -> tuple[GetStatus, int, list[int]]:
    """Status, where to go on, and the queue offsets that were found."""
    return page.status, page.next_begin_offset, [message.queue_offset for message in page.messages]


# -- outside the queue ---------------------------------------------------------------------------------------


def test_no_matched_logic_queue_for_a_queue_that_cannot_exist(home: StoreHome) -> None:
    store = home.open()
    for page in (store.get("no/such", 0, 5), store.get("T", -1, 5), store.get("t" * 256, 0, 5)):
        assert (page.status, page.next_begin_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        assert (page.min_offset, page.max_offset, page.messages) == (0, 0, [])


def test_no_message_in_queue_for_a_topic_or_queue_without_messages(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 1)
    for topic, queue_id in (("unknown", 0), ("T", 1)):
        page = store.get(topic, queue_id, 7)
        assert (page.status, page.next_begin_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert [path.name for path in (home.path / "consumequeue").iterdir()] == ["T"], "a look makes no folders"


def test_offset_too_small_leads_to_the_minimum(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 3)
    assert outline(store.get("T", 0, -1)) == (GetStatus.OFFSET_TOO_SMALL, 0, [])


def test_offset_overflow_one_stays_where_it_is(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 3)
    page = store.get("T", 0, 3)
    assert outline(page) == (GetStatus.OFFSET_OVERFLOW_ONE, 3, [])
    assert (page.min_offset, page.max_offset) == (0, 3)


@pytest.mark.parametrize("offset", [4, 100, 2**62])
def test_offset_overflow_badly_leads_to_the_end(home: StoreHome, offset: int) -> None:
    store = home.open()
    put_numbered(store, 3)
    assert outline(store.get("T", 0, offset)) == (GetStatus.OFFSET_OVERFLOW_BADLY, 3, [])


def test_offset_found_null_leads_to_the_next_queue_file(home: StoreHome) -> None:
    store = home.open(mapped_file_size_consume_queue=10 * 20)
    put_numbered(store, 25)
    assert store.get("T", 0, 3).status is GetStatus.FOUND
    queue = store.queues.find("T", 0)
    assert queue is not None
    assert queue.files.files[0].shut_down(), "a file on its way out, as a cleaner leaves it"
    assert outline(store.get("T", 0, 3)) == (GetStatus.OFFSET_FOUND_NULL, 10, [])
    assert store.get("T", 0, 10).status is GetStatus.FOUND


# -- found ---------------------------------------------------------------------------------------------------


def test_found_gives_the_messages_with_everything_that_was_put(home: StoreHome) -> None:
    store = home.open()
    message = Message(
        "orders",
        b"body \0\xff",
        keys=("k1", "k2"),
        tags="paid",
        properties={"colour": "grün", "with": "a\x01b"},
        queue_id=3,
        flag=-7,
        sys_flag=0x1,
        born_timestamp=1_599_999_999_999,
        born_host="192.168.1.100:54321",
        reconsume_times=2,
    )
    ack = store.put(message)
    page = store.get("orders", 3, 0)
    assert page.status is GetStatus.FOUND
    assert page.messages == [
        Record(
            topic="orders",
            queue_id=3,
            queue_offset=0,
            physical_offset=0,
            size=ack.size,
            flag=-7,
            sys_flag=0x1,
            born_timestamp=1_599_999_999_999,
            born_host="192.168.1.100:54321",
            store_timestamp=home.clock.now,
            store_host="127.0.0.1:10911",
            reconsume_times=2,
            properties={"colour": "grün", "with": "a\x01b", "KEYS": "k1 k2", "TAGS": "paid"},
            body=b"body \0\xff",
            body_crc=page.messages[0].body_crc,
        )
    ]
    assert page.records == [encode_record(page.messages[0])], "the raw bytes are the record as RocketMQ writes it"
    assert home.log_files()[0].read_bytes()[: ack.size] == page.records[0]


def test_a_page_has_as_many_messages_as_asked_for(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 10)
    assert outline(store.get("T", 0, 2, max_messages=3)) == (GetStatus.FOUND, 5, [2, 3, 4])
    assert outline(store.get("T", 0, 8, max_messages=3)) == (GetStatus.FOUND, 10, [8, 9])


def test_a_page_has_at_most_32_messages(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 40)
    assert outline(store.get("T", 0, 0, max_messages=1000)) == (GetStatus.FOUND, 32, list(range(32)))
    assert outline(store.get("T", 0, 32, max_messages=1000)) == (GetStatus.FOUND, 40, list(range(32, 40)))


def test_a_page_has_at_most_256_kib(home: StoreHome) -> None:
    store = home.open()
    put_sized(store, 6, 64 << 10)
    page = store.get("T", 0, 0)
    assert outline(page) == (GetStatus.FOUND, 4, [0, 1, 2, 3])
    assert sum(map(len, page.records)) == 256 << 10


def test_a_page_has_at_least_one_message_however_large(home: StoreHome) -> None:
    store = home.open()
    put_sized(store, 2, 300 << 10)
    put_sized(store, 1)
    assert outline(store.get("T", 0, 0)) == (GetStatus.FOUND, 1, [0])
    assert outline(store.get("T", 0, 1)) == (GetStatus.FOUND, 2, [1])


def test_old_messages_come_in_smaller_pages(home: StoreHome) -> None:
    """What lies further behind the log's end than the memory share counts as on disk: 8 messages, 64 KiB."""
    store = home.open(access_message_in_memory_max_ratio=0)
    put_numbered(store, 40)
    page = store.get("T", 0, 0)
    assert outline(page) == (GetStatus.FOUND, 8, list(range(8)))
    assert page.suggest_slave
    put_sized(store, 5, 30 << 10)
    assert outline(store.get("T", 0, 40)) == (GetStatus.FOUND, 42, [40, 41])


def test_a_page_never_crosses_the_end_of_a_queue_file(home: StoreHome) -> None:
    store = home.open(mapped_file_size_consume_queue=10 * 20)
    put_numbered(store, 25)
    assert outline(store.get("T", 0, 0)) == (GetStatus.FOUND, 10, list(range(10)))
    assert outline(store.get("T", 0, 9)) == (GetStatus.FOUND, 10, [9])
    assert outline(store.get("T", 0, 10, max_messages=4)) == (GetStatus.FOUND, 14, [10, 11, 12, 13])
    assert outline(store.get("T", 0, 20)) == (GetStatus.FOUND, 25, [20, 21, 22, 23, 24])


def test_nothing_is_found_when_nothing_is_asked_for(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 3)
    assert outline(store.get("T", 0, 1, max_messages=0)) == (GetStatus.NO_MATCHED_MESSAGE, 1, [])


# -- tags ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        (None, [0, 1, 2, 3]),
        ("", [0, 1, 2, 3]),
        ("*", [0, 1, 2, 3]),
        ("paid", [0, 2]),
        ("paid||refunded", [0, 1, 2]),
        (" refunded  ||  paid || ", [0, 1, 2]),
        ("refunded || *", [0, 1, 2, 3]),
    ],
)
def test_tags_select_messages(home: StoreHome, expression: str | None, found: list[int]) -> None:
    store = home.open()
    for tags in ("paid", "refunded", "paid", ""):
        store.put(Message("T", b"", tags=tags))
    assert outline(store.get("T", 0, 0, tags=expression)) == (GetStatus.FOUND, 4, found)


@pytest.mark.parametrize(("wanted", "found"), [("Aa", [0, 2]), ("BB", [1]), ("Aa || BB", [0, 1, 2])])
def test_tags_with_the_same_hash_are_told_apart_by_their_text(home: StoreHome, wanted: str, found: list[int]) -> None:
    store = home.open()
    for tags in ("Aa", "BB", "Aa"):
        store.put(Message("T", b"", tags=tags))
    assert outline(store.get("T", 0, 0)) == (GetStatus.FOUND, 3, [0, 1, 2])
    queue = store.queues.find("T", 0)
    assert queue is not None
    assert queue.unit(0)[2] == queue.unit(1)[2], "the hashes are the same"
    assert outline(store.get("T", 0, 0, tags=wanted)) == (GetStatus.FOUND, 3, found)


def test_no_matched_message_goes_on_behind_what_was_examined(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 5, tags="paid")
    assert outline(store.get("T", 0, 1, tags="refunded")) == (GetStatus.NO_MATCHED_MESSAGE, 5, [])


def test_no_matched_message_when_only_the_hash_matches(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 2, tags="Aa")
    assert outline(store.get("T", 0, 0, tags="BB")) == (GetStatus.NO_MATCHED_MESSAGE, 2, [])


def test_a_get_examines_800_units_for_one_that_matches(home: StoreHome) -> None:
    store = home.open()
    store.put_many([Message("T", b"", tags="other")] * 810)
    store.put(Message("T", b"", tags="paid"))
    assert outline(store.get("T", 0, 0, tags="paid")) == (GetStatus.NO_MATCHED_MESSAGE, 800, [])
    assert outline(store.get("T", 0, 800, tags="paid")) == (GetStatus.FOUND, 811, [810])


def test_a_page_that_is_full_leaves_the_next_match_for_the_next_get(home: StoreHome) -> None:
    store = home.open()
    for tags in ("paid", "other", "other", "paid", "paid"):
        store.put(Message("T", b"", tags=tags))
    first = store.get("T", 0, 0, max_messages=1, tags="paid")
    assert first.status is GetStatus.FOUND
    assert [message.queue_offset for message in first.messages] == [0]
    second = store.get("T", 0, first.next_begin_offset, max_messages=2, tags="paid")
    assert outline(second) == (GetStatus.FOUND, 5, [3, 4])


# -- what is gone --------------------------------------------------------------------------------------------


def test_message_was_removing_between_the_deletion_of_a_log_file_and_that_of_its_units(home: StoreHome) -> None:
    sizes = {"mapped_file_size_commit_log": 1000, "mapped_file_size_consume_queue": 10 * 20}
    store = home.open(**sizes)
    put_sized(store, 25)  # nine to a log file
    assert store.get("T", 0, 0).status is GetStatus.FOUND
    assert store.log.queue.drop_first()
    page = store.get("T", 0, 0, max_messages=5)
    assert outline(page) == (GetStatus.FOUND, 10, [9]), "what is left is found behind what is gone"
    assert outline(store.get("T", 0, 0, tags="none")) == (GetStatus.NO_MATCHED_MESSAGE, 10, [])
    assert store.log.queue.drop_first()
    page = store.get("T", 0, 0)
    assert outline(page) == (GetStatus.MESSAGE_WAS_REMOVING, 10, [])
    assert page.damaged == (), "gone is not damaged"

    store.close()
    again = home.open(**sizes)
    page = again.get("T", 0, 0)
    assert outline(page) == (GetStatus.OFFSET_TOO_SMALL, 18, [])
    assert (page.min_offset, page.max_offset) == (18, 25)
    assert outline(again.get("T", 0, 18)) == (GetStatus.FOUND, 20, [18, 19])


def test_offset_too_small_after_the_first_log_file_was_removed(home: StoreHome) -> None:
    sizes = {"mapped_file_size_commit_log": 1000}
    with home.open(**sizes) as store:
        put_sized(store, 20)
    home.log_files()[0].unlink()
    store = home.open(**sizes)
    assert outline(store.get("T", 0, 0)) == (GetStatus.OFFSET_TOO_SMALL, 9, [])
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (9, 20)
    assert store.look_up(0) is None, "physical offset 0 is not the first record that is left"
    assert len(home.read_queue(store, "T")) == 11


def test_a_queue_whose_records_are_all_gone_has_its_minimum_at_its_maximum(home: StoreHome) -> None:
    sizes = {"mapped_file_size_commit_log": 1000}
    with home.open(**sizes) as store:
        put_numbered(store, 5, topic="gone")
        put_sized(store, 20)
    home.log_files()[0].unlink()
    for _ in range(2):
        with home.open(**sizes) as store:
            assert (store.min_offset("gone", 0), store.max_offset("gone", 0)) == (5, 5)
            assert outline(store.get("gone", 0, 0)) == (GetStatus.OFFSET_TOO_SMALL, 5, [])
            assert outline(store.get("gone", 0, 5)) == (GetStatus.OFFSET_OVERFLOW_ONE, 5, [])
            assert store.earliest_time("gone", 0) == -1
    store = home.open(**sizes)
    assert store.put(Message("gone", b"back")).queue_offset == 5
    assert outline(store.get("gone", 0, 5)) == (GetStatus.FOUND, 6, [5])


# -- what is damaged -----------------------------------------------------------------------------------------


def test_a_damaged_body_is_passed_over_and_named_and_its_neighbours_are_served(home: StoreHome) -> None:
    store = home.open()
    put_sized(store, 5)
    home.flip(home.log_files()[0], 2 * RECORD_SIZE + 90)
    page = store.get("T", 0, 0)
    assert outline(page) == (GetStatus.FOUND, 5, [0, 1, 3, 4])
    assert page.damaged == (2,)
    alone = store.get("T", 0, 2, max_messages=1)
    assert outline(alone) == (GetStatus.FOUND, 4, [3])
    assert alone.damaged == (2,)
    assert store.look_up(2 * RECORD_SIZE) is None


def test_a_damaged_body_is_still_named_after_the_next_open(home: StoreHome) -> None:
    with home.open() as store:
        put_sized(store, 5)
    home.flip(home.log_files()[0], 2 * RECORD_SIZE + 90)
    store = home.open()
    page = store.get("T", 0, 0)
    assert outline(page) == (GetStatus.FOUND, 5, [0, 1, 3, 4])
    assert page.damaged == (2,)
    assert [(found.physical_offset, found.size) for found in store.report.damage] == [(200, 100)]


def test_a_get_of_nothing_but_damage_goes_on_behind_it(home: StoreHome) -> None:
    store = home.open()
    put_sized(store, 2)
    for number in range(2):
        home.flip(home.log_files()[0], number * RECORD_SIZE + 90)
    page = store.get("T", 0, 0)
    assert outline(page) == (GetStatus.MESSAGE_WAS_REMOVING, 2, [])
    assert page.damaged == (0, 1)


def test_a_body_is_served_unchecked_if_the_settings_say_so(home: StoreHome) -> None:
    store = home.open(verify_crc_on_read=False)
    put_sized(store, 1)
    home.flip(home.log_files()[0], 90)
    assert outline(store.get("T", 0, 0)) == (GetStatus.FOUND, 1, [0])


@pytest.mark.parametrize("other", [("U", 0), ("T", 1)], ids=["another_topic", "another_queue"])
def test_a_record_of_another_queue_is_not_served(home: StoreHome, other: tuple[str, int]) -> None:
    store = home.open()
    mine = store.put(Message("T", b"mine"))
    theirs = store.put(Message(other[0], b"theirs", queue_id=other[1]))
    assert theirs.queue_offset == mine.queue_offset
    assert store.get("T", 0, 0).messages[0].body == b"mine"
    home.write(home.queue_files("T")[0], 0, pack_unit(theirs.physical_offset, theirs.size, 0))
    page = store.get("T", 0, 0)
    assert outline(page) == (GetStatus.MESSAGE_WAS_REMOVING, 1, [])
    assert page.damaged == (0,)


@pytest.mark.parametrize(
    "unit",
    [(100, 100, 0), (50, 100, 0), (0, 99, 0), (0, 200, 0), (0, 50, 0), (100_000, 100, 0), (2**62, 100, 0)],
    ids=["another_offset", "mid_record", "too_short", "too_long", "tiny", "unwritten", "beyond_the_log"],
)
def test_a_unit_that_points_astray_serves_nothing(home: StoreHome, unit: tuple[int, int, int]) -> None:
    store = home.open()
    put_sized(store, 3)
    assert store.get("T", 0, 0).status is GetStatus.FOUND
    home.write(home.queue_files("T")[0], 0, pack_unit(*unit))
    page = store.get("T", 0, 0)
    assert outline(page) == (GetStatus.FOUND, 3, [1, 2])


# -- a closed store ------------------------------------------------------------------------------------------


def test_a_closed_store_answers_no_get(home: StoreHome) -> None:
    """An empty page would send a consumer back to offset 0."""
    store = home.open()
    put_numbered(store, 3)
    store.close()
    with pytest.raises(StoreFailed, match="closed"):
        store.get("T", 0, 2)
    with pytest.raises(StoreFailed, match="closed"):
        store.query("T", "key")
    with pytest.raises(StoreFailed, match="closed"):
        store.max_offset("T", 0)
    with pytest.raises(StoreFailed, match="closed"):
        store.look_up(0)


def test_a_page_that_starts_at_a_damaged_unit_goes_past_it(home: StoreHome) -> None:
    """Whichever bit of the unit is flipped, also the sign of the offset."""
    store = home.open(mapped_file_size_consume_queue=20 * 4)
    put_numbered(store, 10, tags="a")
    assert store.get("T", 0, 9).messages
    path = home.queue_files("T")[0]
    for bit in range(160):
        home.flip(path, 20 + bit // 8, bit % 8)
        for tags in (None, "a"):
            assert store.get("T", 0, 1, 1, tags).next_begin_offset > 1, f"bit {bit}"
        home.flip(path, 20 + bit // 8, bit % 8)
