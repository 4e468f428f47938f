"""A cluster that answers what a test wants: one server that is name server and broker, on a free port."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

from loopback import serving

from penstock.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler


class FakeCluster:
    """`asked` is every request that came; routes name the one server, under the broker ids of `broker_ids`."""

    def __init__(self, handlers: Mapping[int, Handler], broker_ids: tuple[int, ...] = (0,)) -> None:
        self.asked: list[Command] = []
        self.namesrv = ""
        self.broker_ids = broker_ids
        self._handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.HEART_BEAT: lambda connection, command: command.reply(ResponseCode.SUCCESS),
            RequestCode.UNREGISTER_CLIENT: lambda connection, command: command.reply(ResponseCode.SUCCESS),
            **handlers,
        }

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeCluster]:
        def note(connection: Connection, command: Command) -> None:
            self.asked.append(command)

        async with serving(self._handlers, before=note) as (_, (host, port)):
            self.namesrv = f"{host}:{port}"
            yield self

    def of(self, code: RequestCode) -> list[Command]:
        return [command for command in self.asked if command.code == code]

    def _route(self, connection: Connection, command: Command) -> Command:
        data = TopicRouteData(
            broker_datas=[
                BrokerData(broker_name="fake", cluster="C", broker_addrs=dict.fromkeys(self.broker_ids, self.namesrv))
            ],
            queue_datas=[QueueData(broker_name="fake", perm=6, read_queue_nums=1, write_queue_nums=1)],
        )
        return command.reply(ResponseCode.SUCCESS, body=data.to_bytes())
