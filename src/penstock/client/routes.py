"""Name servers and topic routes. A route lists the brokers that have a topic, and their writable and readable queues.

`NameServers` sends reads to one name server and writes to all. It prefers the name server that answered last, so a dead
name server costs one failed attempt, not one per request.

`Routes` caches routes, and the client refreshes them every 30 seconds by default. If a refresh fails, the cached route
stays, so clients keep working without name servers. A producer uses the route of the template topic TBW102 for an
unknown topic, which its first send creates. The classes are not thread-safe: use them from the event loop's thread
only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import cached_property
from math import inf
from typing import Final

from penstock.client.connection_pool import ConnectionPool, shared
from penstock.errors import BadRequest, NoAnswer, NoRoute, PenstockError, Refused, Unreachable
from penstock.protocol import fields
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.routes import MASTER, PERM_READ, PERM_WRITE, ClusterInfo, QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.namesrv import GetRoute

log = logging.getLogger("penstock.client")

OK: Final = frozenset({ResponseCode.SUCCESS})
TEMPLATE_TOPIC: Final = "TBW102"
"""The template topic: a send to an unknown topic creates the topic with this topic's route."""
NEW_TOPIC_QUEUES: Final = 4
"""The number of queues that a send-created topic gets at each broker. Name servers assume the same number."""
_MAX_QUEUES: Final = 1 << 17
"""Limit of the queues of one route: 4,096, the most that one broker of Penstock gives to a topic, at 32 brokers."""
_DIGITS: Final = 7
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 1.0
_GROWTH: Final = 1.3
"""Seconds between two fetches of a route after errors at its brokers: from the first to the longest pause, and by how
much each is longer than the one before. It is little, because another master is usually there within a second."""


# -- name servers ----------------------------------------------------------------------------------------------------


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
        self._preferred = 0

    @property
    def addresses(self) -> list[str]:
        return list(self._addresses)

    async def request(
        self, code: RequestCode, ext: dict[str, str], body: bytes = b"", *, good: Collection[int] = OK
    ) -> Command:
        """Returns the reply of the first name server that answers.

        Raises Unreachable if none answers, and Refused if the reply's code is not in `good`.
        """
        failures: list[tuple[str, PenstockError]] = []
        for turn in range(len(self._addresses)):
            number = (self._preferred + turn) % len(self._addresses)
            address = self._addresses[number]
            try:
                reply = await self._request(address, code, ext, body)
            except (Unreachable, NoAnswer) as error:
                failures.append((address, error))
                continue
            self._preferred = number
            return check_reply(reply, code, address, good)
        raise Unreachable(_unreachable(failures))

    async def request_all(
        self, code: RequestCode, ext: dict[str, str], body: bytes = b"", *, good: Collection[int] = OK
    ) -> dict[str, Command]:
        """Returns the replies of all name servers, by address. Raises the error of the first name server that fails."""
        replies = {}
        for address in self._addresses:
            replies[address] = check_reply(await self._request(address, code, ext, body), code, address, good)
        return replies

    async def _request(self, address: str, code: RequestCode, ext: dict[str, str], body: bytes) -> Command:
        connection = await self._pool.get(address)
        command = Command(code, dict(ext), body)
        self._sign(command)
        return await connection.request(command, self._timeout_s)


def check_reply(reply: Command, code: RequestCode, address: str, good: Collection[int] = OK) -> Command:
    """Returns the reply if its code is in `good`. Otherwise raises Refused."""
    if reply.code in good:
        return reply
    try:
        name = ResponseCode(reply.code).name
    except ValueError:
        name = f"code {reply.code}"
    remark = " ".join((reply.remark or "no reason given").split())
    said = f"{remark} ({name} from {address} to {code.name})"
    raise Refused(said, code=reply.code, remark=reply.remark or "", msg_id=reply.ext.get("msgId", ""))


def _unreachable(failures: Sequence[tuple[str, PenstockError]]) -> str:
    reasons = [f"{address} ({_reason(error)})" for address, error in failures]
    if len(reasons) == 1:
        return f"Cannot reach name server {reasons[0]}. Is it running?"
    return f"Cannot reach any name server: {', '.join(reasons)}. Are they running?"


def _reason(error: PenstockError) -> str:
    cause = error.__context__  # the socket's own error, whose text does not repeat the address
    if isinstance(cause, TimeoutError):
        return "timed out"
    if isinstance(cause, OSError):
        return str(getattr(cause, "reason", None) or (cause.strerror or str(cause)).lower())
    return "no answer in time" if isinstance(error, NoAnswer) else str(error)


# -- routes ----------------------------------------------------------------------------------------------------------


class Route:
    """The route of one topic: its brokers and queues. Immutable."""

    def __init__(self, topic: str, data: TopicRouteData) -> None:
        self.topic = topic
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Route) and (self.topic, self.data) == (other.topic, other.data)

    def __hash__(self) -> int:
        return hash(self.topic)

    @cached_property
    def brokers(self) -> dict[str, dict[int, str]]:
        """Broker addresses, by broker name and then broker id."""
        return {broker.broker_name: dict(broker.broker_addrs) for broker in self.data.broker_datas}

    @cached_property
    def masters(self) -> dict[str, str]:
        """The masters' addresses by broker name."""
        return {name: ids[MASTER] for name, ids in self.brokers.items() if MASTER in ids}

    @cached_property
    def publish_queues(self) -> tuple[MessageQueue, ...]:
        """The writable queues, in the order of Java's clients."""
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
        """The readable queues, sorted."""
        return tuple(
            sorted(
                MessageQueue(broker_name=each.broker_name, queue_id=queue_id, topic=self.topic)
                for each in self.data.queue_datas
                if each.perm & PERM_READ
                for queue_id in range(each.read_queue_nums)
            )
        )

    def _ordered_queues(self, conf: str) -> Iterable[MessageQueue]:
        for name, count in _order_of(conf):
            for queue_id in range(count):
                yield MessageQueue(broker_name=name, queue_id=queue_id, topic=self.topic)


class Routes:
    """The routes of the topics that one client uses."""

    def __init__(self, name_servers: NameServers) -> None:
        self._name_servers = name_servers
        self._known: dict[str, Route] = {}
        self._cluster: dict[str, dict[int, str]] = {}
        self._fetching: dict[str, asyncio.Task[Route]] = {}
        self._refreshing: set[asyncio.Task[None]] = set()
        self._refreshes: dict[str, tuple[float, float]] = {}
        """When each route was last fetched after an error, and the pause after that."""
        self.on_change: list[Callable[[str], None]] = []
        """Callbacks; each is called with the name of a topic whose route has changed."""

    async def fetch(self, topic: str) -> Route:
        """Fetches the route from a name server. Raises Unreachable, Refused, BadRequest for a route that cannot be, or,
        for an unknown topic, NoRoute.
        """
        ext = fields.write(GetRoute(topic=topic))
        try:
            reply = await self._name_servers.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        except Refused as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise NoRoute(f"no broker has topic '{topic}'; create it first, or send to it") from None
            raise
        return Route(topic, _checked(TopicRouteData.from_bytes(reply.body), topic))

    def known(self, topic: str) -> Route | None:
        """Returns the cached route, or None."""
        return self._known.get(topic)

    async def find(self, topic: str) -> Route:
        """Returns the cached route, or fetches it. Raises the errors of `fetch`."""
        return self._known.get(topic) or await self._fetch_once(topic, lambda: self.fetch(topic))

    async def find_to_publish(self, topic: str) -> Route:
        """Returns the route for a send: for an unknown topic, the route that the topic will have once the send has
        created it.
        """
        return self._known.get(topic) or await self._fetch_once(topic, lambda: self._fetch_or_template(topic))

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Fetches the routes of `topics` again, or of all cached topics. If that fails, the cached route stays."""
        for topic in list(self._known if topics is None else topics):
            try:
                self._store(await self.fetch(topic))
            except PenstockError as error:
                log.debug("route of topic '%s' not refreshed: %s", topic, error)

    def refresh_soon(self, topic: str) -> None:
        """Fetches a route again in the background, because of an error at the route's brokers.

        The first error does it at once: another broker may be the master already. While errors go on, there are pauses
        between the fetches, from 0.1 s up to a second. A route that has changed ends them.
        """
        now = asyncio.get_running_loop().time()
        at, pause = self._refreshes.get(topic, (-inf, 0.0))
        if now - at < pause:
            return
        is_first = now - at > 2 * _MAX_PAUSE_S
        self._refreshes[topic] = now, _FIRST_PAUSE_S if is_first else min(_GROWTH * pause, _MAX_PAUSE_S)
        task = asyncio.create_task(self.refresh([topic]))
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)

    async def close(self) -> None:
        """Cancels all fetches."""
        tasks = [*self._refreshing, *self._fetching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def load_brokers(self) -> None:
        """Makes `brokers` include every broker of the cluster. Raises Unreachable or Refused."""
        reply = await self._name_servers.request(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        table = ClusterInfo.from_bytes(reply.body).broker_addr_table
        self._cluster = {name: dict(broker.broker_addrs) for name, broker in table.items()}

    def brokers(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of all known brokers, by broker name and then broker id. Of a broker with several
        routes, those of the route that was fetched last: the route of a topic that was deleted stays as it was.
        """
        brokers: dict[str, dict[int, str]] = dict(self._cluster)
        for route in self._known.values():
            brokers.update(route.brokers)
        return brokers

    def address(self, broker_name: str, broker_id: int = MASTER) -> str:
        """Returns a broker's address. Raises NoRoute if the broker is unknown."""
        address = self.brokers().get(broker_name, {}).get(broker_id)
        if address is None:
            raise NoRoute(f"no known route has broker '{broker_name}' (id {broker_id}); check its name, and start it")
        return address

    async def _fetch_once(self, topic: str, fetch: Callable[[], Coroutine[None, None, Route]]) -> Route:
        """Runs `fetch` and caches its route. Concurrent callers for the same topic share one fetch."""
        task = self._fetching.get(topic)
        if task is None:
            task = self._fetching[topic] = asyncio.create_task(fetch())
            task.add_done_callback(lambda done: self._fetched(topic, done))
        closed = f"the route of topic '{topic}' was not fetched: this client is closed; create a new one"
        return await shared(task, lambda: Unreachable(closed))

    def _fetched(self, topic: str, task: asyncio.Task[Route]) -> None:
        self._fetching.pop(topic, None)
        if not task.cancelled() and task.exception() is None:
            self._store(task.result())

    def _store(self, route: Route) -> None:
        before = self._known.pop(route.topic, None)
        self._known[route.topic] = route  # behind all others: see `brokers`
        if before is not None and before != route:
            self._refreshes.pop(route.topic, None)
            for notify in self.on_change:
                notify(route.topic)

    async def _fetch_or_template(self, topic: str) -> Route:
        try:
            return await self.fetch(topic)
        except NoRoute as error:
            try:
                template = await self.fetch(TEMPLATE_TOPIC)
            except NoRoute:
                raise error from None
        queues = [_new_topic_queues(each) for each in template.data.queue_datas]
        return Route(topic, TopicRouteData(broker_datas=template.data.broker_datas, queue_datas=queues))


def _order_of(conf: str) -> Iterable[tuple[str, int]]:
    """Yields the brokers of an ordered topic, and how many queues each has. A count of many digits is cut off."""
    for entry in conf.split(";"):
        name, _, count = entry.partition(":")
        yield name, int(count[:_DIGITS]) if count.isdecimal() else 0


def _checked(data: TopicRouteData, topic: str) -> TopicRouteData:
    """Returns a route. Raises BadRequest if it has so many queues that a list of them would fill the memory."""
    read = sum(max(each.read_queue_nums, 0) for each in data.queue_datas)
    write = sum(max(each.write_queue_nums, 0) for each in data.queue_datas)
    ordered = sum(count for _, count in _order_of(data.order_topic_conf or ""))
    found = max(read, write, ordered)
    if found > _MAX_QUEUES:
        why = f"the name server's route of topic '{topic}' has too many queues; check the topic's settings"
        raise BadRequest(why, expected=f"at most {_MAX_QUEUES}", found=found)
    return data


def _new_topic_queues(template: QueueData) -> QueueData:
    return QueueData(
        broker_name=template.broker_name,
        perm=template.perm,
        read_queue_nums=min(NEW_TOPIC_QUEUES, template.read_queue_nums),
        write_queue_nums=min(NEW_TOPIC_QUEUES, template.write_queue_nums),
    )
