"""Finding records by key and time, and offsets by time: exact, against a computation that looks at everything."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from support.stores import StoreHome

from penstock.errors import BadMessage, BadStore
from penstock.format.index_layout import key_hash
from penstock.format.sys_flag import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from penstock.store import Boundary, Message, MessageStore

pytestmark = pytest.mark.usefixtures("kernels_name")

START = 1_600_000_000_000
SMALL_INDEX = {"max_hash_slot_num": 7, "max_index_num": 20}
SMALL_FILES = {"mapped_file_size_commit_log": 1000, "mapped_file_size_consume_queue": 7 * 20}


def put_at(home: StoreHome, store: MessageStore, times: Sequence[int], **fields: object) -> None:
    """Messages stored at these times after START, each with its number for a body."""
    for number, time in enumerate(times):
        home.clock.now = START + time
        assert store.put(Message("T", b"%d" % number, **fields)).ok  # type: ignore[arg-type]


def found(
    store: MessageStore, key: str, begin: int = 0, end: int = 2**63 - 1, most: int = 64, topic: str = "T"
) -> list:
    return [int(record.body) for record in store.query(topic, key, begin, end, most)]


# -- by key --------------------------------------------------------------------------------------------------


def test_a_key_finds_its_records_oldest_first(home: StoreHome) -> None:
    store = home.open()
    for number, keys in enumerate(["a", ("a", "b"), ("c",), "b a c", ()]):
        store.put(Message("T", b"%d" % number, keys=keys))
    assert found(store, "a") == [0, 1, 3]
    assert found(store, "b") == [1, 3]
    assert found(store, "c") == [2, 3]
    assert found(store, "d") == []
    assert found(store, "a b") == [], "a key has no spaces"
    assert found(store, "") == []


def test_a_unique_key_finds_its_record(home: StoreHome) -> None:
    store = home.open()
    unique = "7F00000100002A139A55000000000000"
    store.put(Message("T", b"0", keys=("k",), properties={"UNIQ_KEY": unique}))
    store.put(Message("T", b"1"))
    assert found(store, unique) == [0]
    assert found(store, "k") == [0]


def test_the_time_bounds_are_exact_to_the_millisecond_and_both_included(home: StoreHome) -> None:
    store = home.open()
    times = [0, 1, 2, 999, 1000, 1001, 1999, 2000, 5500]
    put_at(home, store, times, keys=("k",))
    for begin in [*times, -1, 3, 998, 1500, 5501]:
        for end in [*times, -1, 3, 998, 1500, 5501, 9999]:
            expected = [number for number, time in enumerate(times) if begin <= time <= end]
            assert found(store, "k", START + begin, START + end) == expected, (begin, end)


def test_the_newest_are_given_when_there_are_too_many(home: StoreHome) -> None:
    store = home.open()
    put_at(home, store, range(100), keys=("k",))
    assert found(store, "k", most=3) == [97, 98, 99]
    assert found(store, "k", most=1000) == list(range(36, 100)), "maxMsgsNumBatch is 64"
    assert found(store, "k", START + 10, START + 20, most=3) == [18, 19, 20]
    assert found(store, "k", most=0) == []
    assert len(store.query("T", "k")) == 32


def test_the_settings_say_how_many_are_given(home: StoreHome) -> None:
    store = home.open(default_query_max_num=2, max_msgs_num_batch=3)
    put_at(home, store, range(10), keys=("k",))
    assert len(store.query("T", "k")) == 2
    assert found(store, "k", most=10) == [7, 8, 9]


def test_a_record_comes_once_however_often_it_has_the_key(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("T", b"0", keys="k k k", properties={"UNIQ_KEY": "k"}))
    assert found(store, "k") == [0]


def test_keys_with_the_same_hash_do_not_answer_for_each_other(home: StoreHome) -> None:
    assert key_hash("T", "Aa") == key_hash("T", "BB")
    store = home.open()
    for number, key in enumerate(["Aa", "BB", "Aa", "AaAa", "BBBB", "AaBB"]):
        store.put(Message("T", b"%d" % number, keys=(key,)))
    assert found(store, "Aa") == [0, 2]
    assert found(store, "BB") == [1]
    assert found(store, "BBAa") == []
    assert found(store, "AaBB") == [5]
    assert found(store, "Aa", most=1) == [2]


def test_topics_with_the_same_hash_do_not_answer_for_each_other(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("Aa", b"0", keys=("k",)))
    store.put(Message("BB", b"1", keys=("k",)))
    assert key_hash("Aa", "k") == key_hash("BB", "k")
    assert found(store, "k", topic="Aa") == [0]
    assert found(store, "k", topic="BB") == [1]


def test_the_key_whose_hash_has_no_absolute_value_is_found(home: StoreHome) -> None:
    assert key_hash("TopicTest", "aentnpwi") == 0
    store = home.open()
    store.put(Message("TopicTest", b"0", keys=("aentnpwi",)))
    assert found(store, "aentnpwi", topic="TopicTest") == [0]


@pytest.mark.parametrize("key", ["Straße", "中文", "😀", "a-b_c%d|e"])
def test_keys_need_not_be_ascii(home: StoreHome, key: str) -> None:
    with home.open() as store:
        store.put(Message("T", b"0", keys=(key,)))
        assert found(store, key) == [0]
    assert found(home.open(), key) == [0]


def test_prepared_messages_are_found_and_rolled_back_ones_are_not(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("T", b"0", keys=("k",), sys_flag=TRANSACTION_PREPARED))
    store.put(Message("T", b"1", keys=("k",), sys_flag=TRANSACTION_ROLLBACK))
    assert found(store, "k") == [0]


def test_a_delayed_message_is_found_under_the_schedule_topic(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("T", b"0", keys=("k",), delay_level=2))
    assert found(store, "k") == []
    assert found(store, "k", topic="SCHEDULE_TOPIC_XXXX") == [0]


def test_damaged_and_deleted_records_are_left_out(home: StoreHome) -> None:
    sizes = {"mapped_file_size_commit_log": 1000}
    with home.open(**sizes) as store:
        acks = [store.put(Message("T", b"%02d" % number, keys=("k",))) for number in range(30)]
        damaged = next(ack for ack in acks if ack.physical_offset > 2000)
    home.log_files()[0].unlink()
    home.flip(home.log_files()[1], damaged.physical_offset - 2000 + 88)
    store = home.open(**sizes)
    expected = [ack.queue_offset for ack in acks if ack.physical_offset >= 1000 and ack is not damaged]
    assert found(store, "k") == expected


def test_many_keys_at_once_find_the_messages_in_the_order_of_the_keys(home: StoreHome) -> None:
    store = home.open(**SMALL_FILES)
    for number in range(60):
        assert store.put(Message("T", b"%d" % number, keys=(f"k{number % 25}", "all"), queue_id=number % 3)).ok
    keys = ["k7", "none", "k24", "k7", "k0"]
    numbers, messages = store.query_many_messages("T", keys)
    assert numbers.tolist() == [0, 0, 0, 2, 2, 3, 3, 3, 4, 4, 4]
    assert [int(message.body) for message in messages] == [7, 32, 57, 24, 49, 7, 32, 57, 0, 25, 50]
    assert messages == [store.look_up(offset) for offset in store.query_many("T", keys)[1].tolist()]
    assert [len(part) for part in store.query_many_messages("T", ["none"])] == [0, 0]
    assert [len(part) for part in store.query_many_messages("nowhere", keys)] == [0, 0]
    _, messages = store.query_many_messages("T", ["all"])
    assert [int(message.body) for message in messages] == list(range(60))


def test_many_keys_at_once_find_what_consumers_may_see(home: StoreHome) -> None:
    store = home.open()
    for number in range(5):
        store.put(Message("T", b"%d" % number, keys="k"))
    third = store.query("T", "k")[3].physical_offset
    found = store._keys.find_many("T", ["k"], 0, 2**63 - 1, third)[1]  # type: ignore[union-attr]
    assert len(found) == 3
    assert len(store._keys.read_many("T", ["k"], 0, 2**63 - 1, third)[1]) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(3))
def test_queries_agree_with_a_look_at_everything(home: StoreHome, seed: int) -> None:
    """Over several index files and log files, also after re-opening, clean and after a crash."""
    print("seed", seed)
    chance = random.Random(seed)
    names = ["Aa", "BB", "AaAa", "BBBB", "AaBB", "k1", "k2", "k3"]
    settings = {**SMALL_INDEX, **SMALL_FILES}
    puts: list[tuple[int, str, set[str]]] = []
    store = home.open(**settings)
    for number in range(150):
        home.clock.now += chance.choice([0, 0, 1, 7, 400, 999, 1000, 30_000])
        keys = chance.choices(names, k=chance.randrange(4))
        topic = chance.choice(["T", "U"])
        unique = chance.choice(["", f"u{number}"])
        properties = {"UNIQ_KEY": unique} if unique else {}
        assert store.put(Message(topic, b"%d" % number, keys=tuple(keys), properties=properties)).ok
        puts.append((home.clock.now, topic, {*keys, *([unique] if unique else [])}))
        if number in (50, 100):
            store.close()
            if number == 100:
                home.mark_crashed()
            store = home.open(**settings)
    assert len(home.index_files()) > 5
    moments = [moment for moment, _, _ in puts]
    for _ in range(300):
        topic, key = chance.choice(["T", "U"]), chance.choice([*names, f"u{chance.randrange(150)}", "unknown"])
        begin = chance.choice([0, chance.choice(moments) + chance.randrange(-1, 2)])
        end = chance.choice([2**63 - 1, chance.choice(moments) + chance.randrange(-1, 2)])
        most = chance.choice([1, 2, 5, 64])
        expected = [
            number
            for number, (moment, put_topic, keys) in enumerate(puts)
            if put_topic == topic and key in keys and begin <= moment <= end
        ]
        assert found(store, key, begin, end, most, topic) == expected[-most:], (topic, key, begin, end, most)


def test_a_store_without_an_index_says_so(home: StoreHome) -> None:
    store = home.open(message_index_enable=False)
    store.put(Message("T", b"0", keys=("k",)))
    with pytest.raises(BadStore, match="messageIndexEnable"):
        store.query("T", "k")
    assert not (home.path / "index").exists()


# -- by place and id -----------------------------------------------------------------------------------------


def test_a_record_is_looked_up_by_place_and_by_id(home: StoreHome) -> None:
    store = home.open(**SMALL_FILES)
    acks = [store.put(Message("T", b"%d" % number)) for number in range(20)]
    for number, ack in enumerate(acks):
        by_place, by_id = store.look_up(ack.physical_offset), store.look_up_id(ack.msg_id)
        assert by_place == by_id
        assert by_place is not None
        assert by_place.body == b"%d" % number
        assert by_place.msg_id == ack.msg_id
    end = acks[-1].end_offset
    assert [store.look_up(place) for place in (-1, 1, acks[0].size - 1, end, end + 5000, 2**62)] == [None] * 6
    assert store.look_up(acks[9].end_offset) is None, "the filler at a file's end is no record"


@pytest.mark.parametrize("text", ["", "xyz", "7F00000100002A9F", "7F00000100002A9F00000000000000BG"])
def test_a_text_that_is_no_id_is_refused_in_one_sentence(home: StoreHome, text: str) -> None:
    store = home.open()
    with pytest.raises(BadMessage, match="is not a message id"):
        store.look_up_id(text)


# -- by time -------------------------------------------------------------------------------------------------


def first_at_or_after(times: Sequence[int], time: int) -> int:
    return next((place for place, each in enumerate(times) if each >= time), len(times))


def last_at_or_before(times: Sequence[int], time: int) -> int:
    return max((place for place, each in enumerate(times) if each <= time), default=0)


def is_nearest(times: Sequence[int], time: int, place: int) -> bool:
    """The closest; of two that are equally close the earlier time; of equal times the one next to the asked time."""
    best = min(abs(each - time) for each in times)
    chosen = min(each for each in times if abs(each - time) == best)
    return times[place] == chosen


def offsets(store: MessageStore, time: int) -> tuple[int, int, int]:
    moment = START + time
    return (
        store.offset_by_time("T", 0, moment),
        store.offset_by_time("T", 0, moment, Boundary.LOWER),
        store.offset_by_time("T", 0, moment, Boundary.UPPER),
    )


def test_offsets_by_time_are_exact_at_both_ends(home: StoreHome) -> None:
    store = home.open()
    put_at(home, store, [100, 200, 300])
    assert offsets(store, 100) == (0, 0, 0)
    assert offsets(store, 200) == (1, 1, 1)
    assert offsets(store, 300) == (2, 2, 2)
    assert offsets(store, 50) == (0, 0, 0)
    assert offsets(store, 99) == (0, 0, 0)
    assert offsets(store, 101) == (0, 1, 0)
    assert offsets(store, 149) == (0, 1, 0)
    assert offsets(store, 150) == (0, 1, 0), "of two equally near the earlier"
    assert offsets(store, 151) == (1, 1, 0)
    assert offsets(store, 301) == (2, 3, 2), "nothing is stored at or after: the queue's end"
    assert offsets(store, 10**9) == (2, 3, 2)


def test_of_equal_times_lower_is_the_first_and_upper_the_last(home: StoreHome) -> None:
    store = home.open(**SMALL_FILES)
    put_at(home, store, [100] * 3 + [200] * 20 + [300] * 3)
    assert offsets(store, 200)[1:] == (3, 22)
    assert 3 <= offsets(store, 200)[0] <= 22
    assert offsets(store, 199) == (3, 3, 2)
    assert offsets(store, 201)[1:] == (23, 22)
    assert offsets(store, 100)[1:] == (0, 2)
    assert offsets(store, 300)[1:] == (23, 25)


def test_an_unknown_queue_has_offset_zero_at_every_time(home: StoreHome) -> None:
    store = home.open()
    assert [store.offset_by_time("T", 0, START, boundary) for boundary in Boundary] == [0, 0, 0]
    assert (store.store_time("T", 0, 0), store.earliest_time("T", 0), store.earliest_time()) == (-1, -1, -1)


@pytest.mark.parametrize("seed", range(4))
def test_offsets_by_time_agree_with_a_look_at_everything(home: StoreHome, seed: int) -> None:
    """Over many queue files and log files, whose modification times say nothing; another queue lies in between."""
    print("seed", seed)
    chance = random.Random(seed)
    store = home.open(**SMALL_FILES)
    times: list[int] = []
    now = 1000
    for _ in range(60):
        now += chance.choice([0, 0, 0, 1, 2, 10, 500])
        home.clock.now = START + now
        if chance.random() < 0.3:
            store.put(Message("other", b""))
        else:
            store.put(Message("T", b"x" * chance.randrange(100)))
            times.append(now)
    if seed % 2:
        store.close()
        store = home.open(**SMALL_FILES)
    for time in [*range(990, 1030), *times, *(chance.randrange(now + 1000) for _ in range(200)), now, now + 1]:
        nearest, lower, upper = offsets(store, time)
        assert lower == first_at_or_after(times, time), time
        assert upper == last_at_or_before(times, time), time
        assert is_nearest(times, time, nearest), (time, nearest)


def test_times_of_messages_that_are_gone_are_not_looked_at(home: StoreHome) -> None:
    with home.open(**SMALL_FILES) as store:
        put_at(home, store, range(0, 3000, 100), keys=("k",))
    home.log_files()[0].unlink()
    store = home.open(**SMALL_FILES)
    lowest = store.min_offset("T", 0)
    assert lowest > 0
    assert offsets(store, 0) == (lowest, lowest, lowest)
    assert offsets(store, lowest * 100) == (lowest, lowest, lowest)
    assert offsets(store, lowest * 100 + 110) == (lowest + 1, lowest + 2, lowest + 1)
    assert store.earliest_time("T", 0) == store.earliest_time() == START + lowest * 100


def test_store_times_of_single_messages_are_known(home: StoreHome) -> None:
    store = home.open()
    put_at(home, store, [5, 7, 7])
    assert [store.store_time("T", 0, place) for place in (-1, 0, 1, 2, 3)] == [-1, START + 5, START + 7, START + 7, -1]
    assert store.earliest_time("T", 0) == store.earliest_time() == START + 5
