"""Who hears of an event: in which order, and until when."""

from __future__ import annotations

from pathlib import Path

from penstock.store import BrokerRole, Message, MessageStore, Settings
from penstock.store.running_flags import RunningFlags, StoreFault
from penstock.store.worker_thread import Listeners


def test_listeners_are_called_in_the_order_in_which_they_came_and_not_after_they_left() -> None:
    heard: list[str] = []
    listeners: Listeners[[str]] = Listeners()

    def first(what: str) -> None:
        heard.append(f"first {what}")

    def second(what: str) -> None:
        heard.append(f"second {what}")
        listeners.remove(second)

    listeners.add(first)
    listeners.add(second)
    listeners.notify("a")
    listeners.notify("b")
    assert heard == ["first a", "second a", "first b"]
    listeners.remove(second)
    listeners.remove(first)
    listeners.notify("c")
    assert len(heard) == 3


def test_a_listener_of_dispatch_can_be_removed_and_the_others_are_still_called(tmp_path: Path) -> None:
    stays: list[int] = []
    leaves: list[int] = []
    with MessageStore.open(tmp_path / "store", Settings.dev()) as store:

        def leaving() -> None:
            leaves.append(store.dispatcher.position)

        store.dispatcher.on_advance(leaving)
        store.dispatcher.on_advance(lambda: stays.append(store.dispatcher.position))
        store.put(Message("orders", b"one"))
        store.catch_up()
        store.dispatcher.remove_advance_listener(leaving)
        before = len(leaves)
        end = store.put(Message("orders", b"two")).end_offset
        store.catch_up()
    assert stays[-1] == end
    assert len(leaves) == before


def test_flags_say_whether_puts_are_taken_at_every_change() -> None:
    flags, heard = RunningFlags(), []
    flags.on_change(heard.append)
    flags.raise_fault(StoreFault.DISK_FULL, "the disk is full")
    flags.raise_fault(StoreFault.NOT_READABLE, "it cannot be read")
    flags.clear(StoreFault.DISK_FULL)
    flags.clear(StoreFault.DISK_FULL)
    assert heard == [False, False, True]


def test_a_replica_takes_no_puts_even_when_its_troubles_are_over(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", Settings.dev(broker_role=BrokerRole.SLAVE)) as store:
        store.flags.raise_fault(StoreFault.DISK_FULL, "the disk is full")
        store.flags.clear(StoreFault.DISK_FULL)
        assert not store.log.appender.is_open
        assert not store.put(Message("orders", b"one")).stored


def test_the_log_knows_the_next_offset_of_every_queue_whichever_way_it_was_put(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", Settings.dev()) as store:
        for number in range(5):  # the first takes the general path
            store.put(Message("orders", b"%d" % number, queue_id=number % 2))
        store.put(Message("later", b"", delay_level=1))
        offsets = {(topic, queue_id): offset for topic, queue_id, offset in store.log.next_offsets()}
    assert offsets == {("orders", 0): 3, ("orders", 1): 2, ("SCHEDULE_TOPIC_XXXX", 0): 1}
