"""A broker and a name server that run in a thread of this process, on their own event loop.

The store's files, the sockets and the protocol are real. A temporary store is deleted by `close`. Several brokers can
run side by side. Any thread may use a broker. `async with` starts and stops it without blocking the caller's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from penstock.broker.access import Access
from penstock.broker.broker import Broker
from penstock.broker.remoting.signatures import Signatures
from penstock.broker.settings import BrokerSettings
from penstock.client import sync
from penstock.client.config import ClientConfig
from penstock.client.event_loop_thread import LoopThread
from penstock.client.message import ReceivedMessage
from penstock.errors import BadSettings, PenstockError
from penstock.namesrv import NameServer, NamesrvSettings
from penstock.namesrv.access import LocalRule
from penstock.remoting.sockets import bind
from penstock.store import MessageStore, Settings

_HOST: Final = "127.0.0.1"
_STOP_S: Final = 10.0
_PAGE: Final = 1000


def broker(
    topics: Mapping[str, int] | Iterable[str] = (),
    *,
    store_path: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> LocalBroker:
    """Returns a broker for a `with` or an `async with` statement.

    `topics` are created at the start: names, or a mapping of names to their number of queues (default 4). `settings`
    have RocketMQ's names, as in `{"flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s 2s"}`. A store at
    `store_path` is opened or created, and kept. By default the store is temporary.
    """
    return LocalBroker(topics, store_path=store_path, settings=settings)


class LocalBroker:
    """One broker with its name server. `namesrv` and `address` are `host:port`; a restart keeps them."""

    def __init__(
        self,
        topics: Mapping[str, int] | Iterable[str] = (),
        *,
        store_path: str | Path | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 4)
        self._pairs = [f"{name}={_text(value)}" for name, value in (settings or {}).items()]
        self._is_temporary = store_path is None
        self._path = None if store_path is None else Path(store_path)
        self._ports = [0, 0]
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None
        self._name_server: NameServer | None = None

    # -- addresses and clients --

    @property
    def namesrv(self) -> str:
        """The name server's address, the only address that clients need."""
        return f"{_HOST}:{self._ports[0]}"

    @property
    def address(self) -> str:
        """The broker's own address."""
        return f"{_HOST}:{self._ports[1]}"

    @property
    def store_path(self) -> Path:
        """The store's directory. Raises PenstockError before the first start."""
        if self._path is None:
            raise PenstockError("the broker has not been started, so it has no directory yet")
        return self._path

    def admin(self, config: ClientConfig | None = None) -> sync.Admin:
        """Returns an admin client. The caller must close it: `with b.admin() as admin: ...`.

        If the broker needs an account or TLS, pass a `config`.
        """
        return sync.Admin(config or self.namesrv)

    def settle(self) -> None:
        """Waits until all stored messages can be consumed and found by key.

        That takes a millisecond or two. Call it before a single read; a consumer that waits for messages does not need
        it.
        """
        if self._broker is None or self._thread is None:
            raise PenstockError("the broker is not running")
        self._broker.store.catch_up()

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Returns all messages that are stored in a topic, in the order in which the broker stored them; none if the
        topic does not exist. It reads the store itself: no account is needed, and no group's offsets move.
        """
        self.settle()
        assert self._broker is not None
        store, config = self._broker.store, self._broker.state.topics.find(topic)
        found: list[ReceivedMessage] = []
        for queue_id in range(0 if config is None else config.read_queue_nums):
            offset = store.min_offset(topic, queue_id)
            while records := (page := store.get(topic, queue_id, offset, _PAGE)).messages:
                found += (ReceivedMessage(record, self._broker.identity.name) for record in records)
                offset = page.next_begin_offset
        return sorted(found, key=lambda message: message.physical_offset)

    # -- start and stop --

    def start(self) -> Self:
        """Starts the broker and creates the topics. Does nothing if the broker is running."""
        if self._thread is not None:
            return self
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="penstock-"))
        thread = LoopThread("penstock broker")
        try:
            thread.run(self._serve(self._path))
        except BaseException:
            thread.close()
            self._remove()
            raise
        self._thread = thread
        return self

    def stop(self) -> None:
        """Stops the broker cleanly and keeps the store. `start` serves the same store again, at the same addresses."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(self._end())
            finally:
                thread.close()

    def restart(self) -> None:
        """Stops the broker and starts it again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the broker, and deletes its store if it is temporary."""
        try:
            self.stop()
        finally:
            self._remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    # -- in the loop thread --

    async def _serve(self, path: Path) -> None:
        settings = Settings.load(None, self._pairs, base=Settings.dev())
        broker_settings = BrokerSettings.of(settings)
        access = Access.of(broker_settings)
        async with contextlib.AsyncExitStack() as opened:  # ends everything begun so far if the start fails
            names, own = (opened.enter_context(contextlib.closing(bind(_HOST, port))) for port in self._ports)
            self._ports = [names.getsockname()[1], own.getsockname()[1]]
            settings = settings.with_changes(store_path_root_dir=path, broker_ip1=_HOST, listen_port=self._ports[1])
            namesrv_settings = NamesrvSettings(
                auto_create_topic_enable=broker_settings.auto_create_topic_enable,
                tls={name: text for name, text in settings.broker.items() if name.startswith("tls.")},
            )
            rule = LocalRule(namesrv_settings.register_broker_from)
            server = NameServer(
                namesrv_settings, before=None if access is None else Signatures(access).for_name_server(rule)
            )
            store = opened.enter_context(contextlib.closing(MessageStore.open(path, settings)))
            broker = Broker(store, broker_settings, name_server=server, access=access)
            for topic, queues in self._topics.items():
                if broker.state.topics.create_for_send_back(topic, queues) is None:
                    raise BadSettings(
                        f"not a valid topic name: '{topic[:40]}'; "
                        "it must have letters, digits, '%', '|', '_' and '-' only"
                    )
            opened.push_async_callback(server.stop, 1.0)
            await server.start(_HOST, self._ports[0], names)
            opened.push_async_callback(broker.stop, _STOP_S)
            await broker.start(_HOST, self._ports[1], own)
            opened.pop_all()
        self._broker, self._name_server = broker, server

    async def _end(self) -> None:
        assert self._broker is not None
        assert self._name_server is not None
        await self._broker.stop(_STOP_S)
        await self._name_server.stop(1.0)

    def _remove(self) -> None:
        if self._is_temporary and self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None


def _text(value: object) -> str:
    """Returns the value in the notation of a broker.conf."""
    return str(value).lower() if isinstance(value, bool) else str(value)
