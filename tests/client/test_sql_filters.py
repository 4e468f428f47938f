"""Subscriptions by SQL92."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.clients import Gathered

from penstock.client import Message, Producer, PullConsumer, PushConsumer, Sql92
from penstock.errors import Refused
from penstock.testing import broker

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker


async def send_prices(namesrv: str) -> None:
    async with Producer("PID", namesrv) as producer:
        for price in range(20):
            colour = "red" if price % 2 else "blue"
            message = Message("orders", b"%d" % price, properties={"price": str(price), "colour": colour})
            await producer.send(message)


def test_only_what_the_expression_selects_is_consumed(run: Run) -> None:
    async def main(namesrv: str) -> None:
        gathered = Gathered()
        wanted = Sql92("price > 10 AND colour = 'red'")
        async with PushConsumer("CID", gathered, namesrv, subscriptions={"orders": wanted}):
            await send_prices(namesrv)
            await gathered.until_has({b"11", b"13", b"15", b"17", b"19"})
        assert len(gathered.messages) == 5
        async with PullConsumer("look", namesrv) as consumer:
            pages = [
                await consumer.pull(queue, 0, expression=Sql92("price < 2"))
                for queue in await consumer.queues("orders")
            ]
        assert sorted(message.body for page in pages for message in page.messages) == [b"0", b"1"]

    with broker(["orders"], settings={"enablePropertyFilter": True}) as b:
        run(main(b.namesrv))


def test_a_filter_that_is_wrong_or_not_allowed_is_refused_at_the_start(run: Run, b: LocalBroker) -> None:
    async def start(namesrv: str, expression: str) -> None:
        await PushConsumer("CID", Gathered(), namesrv, subscriptions={"orders": Sql92(expression)}).start()

    async def main() -> None:
        with pytest.raises(Refused, match="enablePropertyFilter"):
            await start(b.namesrv, "price > 1")

    run(main())
    with broker(["orders"], settings={"enablePropertyFilter": True}) as filtering, pytest.raises(Refused) as caught:
        run(start(filtering.namesrv, "price >"))
    assert caught.value.code == 23
