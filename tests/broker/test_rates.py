"""Rates from counters that only grow."""

from __future__ import annotations

from penstock.broker.stats import SAMPLE_S, DayTotals, Figure, MessageCounters, Rates


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sampled(rates: Rates, clock: Clock, times: int) -> None:
    for _ in range(times):
        clock.now += SAMPLE_S
        rates.sample()


def test_a_minute_forgets_what_is_older_and_an_hour_does_not() -> None:
    counters, clock = MessageCounters(), Clock()
    rates = Rates(counters, "c", clock)
    counters.count_sent("orders", 60, 6000)
    sampled(rates, clock, 6)
    found = rates.find("TOPIC_PUT_NUMS", "orders")
    assert found is not None
    assert [figure.total for figure in found] == [60, 60, 60]
    assert round(found[0].per_second, 2) == 1.0
    sampled(rates, clock, 6)
    found = rates.find("TOPIC_PUT_NUMS", "orders")
    assert found is not None
    assert [figure.total for figure in found] == [0, 60, 60]
    assert rates.per_second("TOPIC_PUT_NUMS", "orders") == 0


def test_an_hour_and_a_day_forget_as_well() -> None:
    counters, clock = MessageCounters(), Clock()
    rates = Rates(counters, "c", clock)
    counters.count_got("orders", "CID", 5, 50)
    sampled(rates, clock, 6 * 65)
    found = rates.find("GROUP_GET_SIZE", "orders@CID")
    assert found is not None
    assert [figure.total for figure in found] == [0, 50, 50]
    sampled(rates, clock, 6 * 60)
    found = rates.find("GROUP_GET_SIZE", "orders@CID")
    assert found is not None
    assert [figure.total for figure in found] == [0, 0, 50]
    sampled(rates, clock, 6 * 60 * 24)
    found = rates.find("GROUP_GET_SIZE", "orders@CID")
    assert found is not None
    assert [figure.total for figure in found] == [0, 0, 0]


def test_what_came_since_the_last_sample_counts_at_once() -> None:
    counters, clock = MessageCounters(), Clock()
    rates = Rates(counters, "c", clock)
    counters.sent_back["orders", "CID"] += 2
    clock.now += 1
    assert rates.find("SNDBCK_PUT_NUMS", "orders@CID") == (Figure(2, 1.0),) * 3


def test_a_topic_that_is_deleted_and_made_again_starts_at_nothing() -> None:
    counters, clock = MessageCounters(), Clock()
    rates = Rates(counters, "c", clock)
    counters.count_sent("orders", 100, 1)
    sampled(rates, clock, 1)
    counters.forget_topic("orders")
    assert rates.find("TOPIC_PUT_NUMS", "orders") is None
    sampled(rates, clock, 6)
    counters.count_sent("orders", 3, 1)
    clock.now += 1
    found = rates.find("TOPIC_PUT_NUMS", "orders")
    assert found is not None
    assert found[0].total == 3
    assert counters.totals().messages_in == {"orders": (103, 2)}


def test_the_totals_of_a_day_are_noted_at_midnight() -> None:
    day, total = [1], [10]
    days = DayTotals(lambda: (total[0], 2 * total[0]), lambda: day[0])
    days.roll()
    assert days.today_morning == (0, 0)
    day[0], total[0] = 2, 15
    days.roll()
    total[0] = 40
    days.roll()
    assert (days.yesterday_morning, days.today_morning) == ((0, 0), (15, 30))
    day[0] = 3
    days.roll()
    assert (days.yesterday_morning, days.today_morning) == ((15, 30), (40, 80))
