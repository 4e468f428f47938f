"""Asking name servers: any of them for what they know, all of them for what they are to change.

The one that answered last is asked first, so that a name server that is down costs one failed attempt, not one each
time. Belongs to the loop's thread.


Which brokers have a topic, and which of their queues may be written or read.

A route is asked for once, kept, and asked for anew every 30 seconds (`refresh`); what no name server answers stays as
it was, since a cluster must go on without its name servers. A topic that nobody knows gets, for a producer, the route
of the template TBW102: a send will create it there. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import cached_property
from typing import Final

from penstock.client.connection_pool import ConnectionPool
from penstock.errors import NoAnswer, NoRoute, PenstockError, Refused, Unreachable
from penstock.protocol import fields
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.routes import MASTER, PERM_READ, PERM_WRITE, ClusterInfo, QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.namesrv import GetRoute

OK: Final = frozenset({ResponseCode.SUCCESS})


class NameServers:
    """The name servers of one cluster."""

    def __init__(
        self,
        addresses: Sequence[str],
        pool: ConnectionPool,
        timeout_s: float,
        sign: Callable[[Command], None],
    ) -> None:
        self._addresses = list(addresses)
        self._pool = pool
        self._timeout_s = timeout_s
        self._sign = sign
        self._first = 0

    @property
    def addresses(self) -> list[str]:
        return list(self._addresses)

    async def ask(
        self, code: RequestCode, ext: dict[str, str], body: bytes = b"", *, good: Collection[int] = OK
    ) -> Command:
        """The answer of one of them. Raises Unreachable if none answers, Refused if it is not a `good` one."""
        failures = []
        for turn in range(len(self._addresses)):
            number = (self._first + turn) % len(self._addresses)
            address = self._addresses[number]
            try:
                reply = await self._ask(address, code, ext, body)
            except (Unreachable, NoAnswer) as error:
                failures.append(str(error))
                continue
            self._first = number
            return accepted(reply, code, address, good)
        raise Unreachable(f"no name server answers: {'; '.join(failures)}; check the address, and that one runs there")

    async def ask_all(
        self, code: RequestCode, ext: dict[str, str], body: bytes = b"", *, good: Collection[int] = OK
    ) -> dict[str, Command]:
        """The answers of all of them, by address. Raises at the first that does not answer well."""
        replies = {}
        for address in self._addresses:
            replies[address] = accepted(await self._ask(address, code, ext, body), code, address, good)
        return replies

    async def _ask(self, address: str, code: RequestCode, ext: dict[str, str], body: bytes) -> Command:
        connection = await self._pool.get(address)
        command = Command(code, dict(ext), body)
        self._sign(command)
        return await connection.request(command, self._timeout_s)


def accepted(reply: Command, code: RequestCode, address: str, good: Collection[int] = OK) -> Command:
    """The reply, if its code is a good one. Raises Refused."""
    if reply.code in good:
        return reply
    try:
        name = ResponseCode(reply.code).name
    except ValueError:
        name = f"code {reply.code}"
    remark = " ".join((reply.remark or "no reason given").split())
    raise Refused(f"{address} answered {code.name} with {name}: {remark}", code=reply.code, remark=reply.remark or "")


log = logging.getLogger("penstock.client")
TEMPLATE_TOPIC: Final = "TBW102"
"""A topic that a send creates is made like this one."""
NEW_TOPIC_QUEUES: Final = 4
"""Queues of such a topic at each broker; the number that name servers count on, too."""
_SOON_S: Final = 1.0


class Route:
    """One topic's route, as a value."""

    def __init__(self, topic: str, data: TopicRouteData) -> None:
        self.topic = topic
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Route) and (self.topic, self.data) == (other.topic, other.data)

    def __hash__(self) -> int:
        return hash(self.topic)

    @cached_property
    def brokers(self) -> dict[str, dict[int, str]]:
        """Addresses by broker name and broker id."""
        return {broker.broker_name: dict(broker.broker_addrs) for broker in self.data.broker_datas}

    @cached_property
    def masters(self) -> dict[str, str]:
        """The masters' addresses by broker name."""
        return {name: ids[MASTER] for name, ids in self.brokers.items() if MASTER in ids}

    @cached_property
    def publish_queues(self) -> tuple[MessageQueue, ...]:
        """The queues that may be written, in the order in which Java clients number them."""
        if self.data.order_topic_conf:
            return tuple(self._ordered_queues(self.data.order_topic_conf))
        queues = sorted(self.data.queue_datas, key=lambda each: each.broker_name)
        return tuple(
            MessageQueue(broker_name=each.broker_name, queue_id=queue_id, topic=self.topic)
            for each in queues
            if each.perm & PERM_WRITE and each.broker_name in self.masters
            for queue_id in range(each.write_queue_nums)
        )

    @cached_property
    def subscribe_queues(self) -> tuple[MessageQueue, ...]:
        """The queues that may be read, sorted."""
        return tuple(
            sorted(
                MessageQueue(broker_name=each.broker_name, queue_id=queue_id, topic=self.topic)
                for each in self.data.queue_datas
                if each.perm & PERM_READ
                for queue_id in range(each.read_queue_nums)
            )
        )

    def _ordered_queues(self, conf: str) -> Iterable[MessageQueue]:
        for piece in conf.split(";"):
            name, _, count = piece.partition(":")
            for queue_id in range(int(count) if count.isdecimal() else 0):
                yield MessageQueue(broker_name=name, queue_id=queue_id, topic=self.topic)


class Routes:
    """The routes of the topics that a client works with."""

    def __init__(self, name_servers: NameServers) -> None:
        self._name_servers = name_servers
        self._known: dict[str, Route] = {}
        self._cluster: dict[str, dict[int, str]] = {}
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._refreshing: set[asyncio.Task[None]] = set()
        self._refreshed_at: dict[str, float] = {}
        self.on_change: list[Callable[[str], None]] = []
        """Called with the topic whose route is not what it was."""

    async def ask(self, topic: str) -> Route:
        """The route as a name server has it now. Raises NoRoute if none has it, Unreachable if none answers."""
        ext = fields.write(GetRoute(topic=topic))
        try:
            reply = await self._name_servers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        except Refused as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise NoRoute(f"no broker has topic '{topic}'; create it first, or send to it") from None
            raise
        return Route(topic, TopicRouteData.from_bytes(reply.body))

    async def find(self, topic: str) -> Route:
        """The route as it is known, asked for if it is not. Raises as `ask` does."""
        return self._known.get(topic) or await self._once(topic, lambda: self.ask(topic))

    async def find_to_publish(self, topic: str) -> Route:
        """The route for a send; that of the template if the send will create the topic."""
        return self._known.get(topic) or await self._once(topic, lambda: self._ask_or_template(topic))

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Asks anew for routes, all that are known unless some are named; errors leave them as they are."""
        for topic in list(self._known if topics is None else topics):
            try:
                self._keep(await self.ask(topic))
            except PenstockError as error:
                log.debug("the route of topic '%s' stays as it is: %s", topic, error)

    def refresh_soon(self, topic: str) -> None:
        """Something is wrong with a route: asks for it anew, without anybody waiting, once a second at most."""
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_at.get(topic, -_SOON_S) >= _SOON_S:
            self._refreshed_at[topic] = now
            task = asyncio.create_task(self.refresh([topic]))
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)

    async def close(self) -> None:
        """Asks no more."""
        tasks = [*self._refreshing, *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def learn_brokers(self) -> None:
        """Has `brokers` give all that the name servers know, whatever their topics. Raises as asking does."""
        reply = await self._name_servers.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        table = ClusterInfo.from_bytes(reply.body).broker_addr_table
        self._cluster = {name: dict(broker.broker_addrs) for name, broker in table.items()}

    def brokers(self) -> dict[str, dict[int, str]]:
        """All brokers that are known: addresses by broker name and broker id."""
        found: dict[str, dict[int, str]] = dict(self._cluster)
        for route in self._known.values():
            found.update(route.brokers)
        return found

    def address(self, broker_name: str, broker_id: int = MASTER) -> str:
        """Where a broker is. Raises NoRoute."""
        found = self.brokers().get(broker_name, {}).get(broker_id)
        if found is None:
            raise NoRoute(
                f"broker '{broker_name}' (id {broker_id}) is in no route that is known; check its name, and start it"
            )
        return found

    async def _once(self, topic: str, ask: Callable[[], Coroutine[None, None, Route]]) -> Route:
        """However many want a route at the same time, it is asked for once."""
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(task)

    def _asked(self, topic: str, task: asyncio.Task[Route]) -> None:
        self._asking.pop(topic, None)
        if not task.cancelled() and task.exception() is None:
            self._keep(task.result())

    def _keep(self, route: Route) -> None:
        before = self._known.get(route.topic)
        self._known[route.topic] = route
        if before is not None and before != route:
            for changed in self.on_change:
                changed(route.topic)

    async def _ask_or_template(self, topic: str) -> Route:
        try:
            return await self.ask(topic)
        except NoRoute as error:
            try:
                template = await self.ask(TEMPLATE_TOPIC)
            except NoRoute:
                raise error from None
        queues = [_like(each) for each in template.data.queue_datas]
        return Route(topic, TopicRouteData(broker_datas=template.data.broker_datas, queue_datas=queues))


def _like(template: QueueData) -> QueueData:
    return QueueData(
        broker_name=template.broker_name,
        perm=template.perm,
        read_queue_nums=min(NEW_TOPIC_QUEUES, template.read_queue_nums),
        write_queue_nums=min(NEW_TOPIC_QUEUES, template.write_queue_nums),
    )
