"""The process of `penstock serve --brokers N`: it starts N brokers, and keeps them running.

It binds the name server's port and the one for health, starts the console, then the brokers: each a process of its own
(`penstock serve` with a `cli.brokers.link_from_broker_to_supervisor`), which opens its store, serves, and registers
with the name server here. A broker that ends is started again after a pause, which doubles up to half a minute while it
does not serve for long; the others serve on. SIGTERM, Ctrl-C or the end of the terminal stops all of them, as one
broker is stopped, and then the name server; a second signal kills them. If this process is killed, the links end, and
each broker stops and closes its store.

What the brokers have in common (`cli.brokers.common_topics_and_groups`) is here in memory only: each broker has it on
disk.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import msgspec

from penstock import __version__
from penstock.broker.access import RELOAD_EVERY_S, Access
from penstock.broker.operations_as_plain_calls import host_text
from penstock.broker.settings import BrokerSettings, observe_address
from penstock.cli import exit_codes
from penstock.cli.broker_process import ServeOptions, ending_on_signals, name_server, stop_signals
from penstock.cli.brokers.common_topics_and_groups import FromBroker, Greeted, MissedDeletions, Report, SharedTables
from penstock.cli.brokers.link_from_broker_to_supervisor import MAX_LINE, NAMES_IN_LINE
from penstock.cli.brokers.names_and_ports import OBSERVE_ALL_ABOVE, PlannedBroker, check_ports, own_host
from penstock.cli.console_child import OFF, ConsoleChild
from penstock.cli.log_output import log_uncaught
from penstock.cli.output import flush, write, write_json
from penstock.cli.service_manager import ServiceManager
from penstock.errors import StoreFailed, Unreachable
from penstock.format.msgspec_warm_up import prepared
from penstock.namesrv import NameServer
from penstock.observation.http_responder import HttpAnswer, answering
from penstock.observation.metrics import CONTENT_TYPE, Family, render
from penstock.observation.process_metrics import SILENT_LOOP, ask_loop, process_metrics
from penstock.remoting.event_loop import run
from penstock.remoting.sockets import bind, parse_address
from penstock.task_supervision import FIRST_PAUSE_S, MAX_PAUSE_S, Supervisor

log = logging.getLogger("penstock.serve")
_STABLE_S: Final = 30.0
"""Seconds that a broker has to serve before its next failure counts as the first one."""
_KILL_AFTER_S: Final = 5.0
"""Seconds beyond stopLimitMillis after which a broker that has not ended is killed."""
_NAMESRV_GRACE_S: Final = 1.0
_CHECK_S: Final = 1.0
_ROUTE_S: Final = 5.0
_ROUTE_EVERY_S: Final = 0.02


class BrokerPhase(StrEnum):
    """What the process of a broker does."""

    STARTING = "starting"
    SERVING = "serving"
    DOWN = "down"
    """It has ended, and is started again after a pause."""
    STOPPED = "stopped"


@dataclass(slots=True)
class SupervisedBroker:
    """One broker, and how it is."""

    plan: PlannedBroker
    phase: BrokerPhase = BrokerPhase.STARTING
    addresses: dict[str, str] = field(default_factory=dict)
    """Its addresses; empty before it serves for the first time."""
    starts: int = 0
    why: str = ""
    """Why it ended the last time; empty while it serves."""
    stopped_cleanly: bool = True
    """Whether its last process ended with status 0, or never served."""
    process: asyncio.subprocess.Process | None = None
    writer: asyncio.StreamWriter | None = None
    has_orders: asyncio.Event = field(default_factory=asyncio.Event)
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its first start has ended, well or not."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is not started again."""


def run_brokers(options: ServeOptions, plans: Sequence[PlannedBroker], shared: Sequence[str]) -> bool:
    """Serves until a signal arrives. Returns whether every broker stopped cleanly. Raises a PenstockError if it cannot
    start. `shared` are the command-line options that every broker gets.
    """
    with ending_on_signals():
        return _run(options, plans, shared)


def _run(options: ServeOptions, plans: Sequence[PlannedBroker], shared: Sequence[str]) -> bool:
    of_broker = BrokerSettings.of(options.settings)
    check_ports(plans, _other_ports(options))
    names = None if options.namesrv == OFF else bind(*parse_address(options.namesrv, "--namesrv"))
    observed = _bind_observe(options, plans[0], of_broker)
    log_uncaught()
    log.info("Penstock %s starts %d brokers: process %d", __version__, len(plans), os.getpid())
    manager = ServiceManager()
    brokers = [SupervisedBroker(plan) for plan in plans]
    observation = BrokersObservation(brokers)
    with (
        closing(manager),
        answering(observed, observation.answer) as observe_url,
        ConsoleChild(
            options.console, options.settings, names, options.config, options.console_account, options.log_options
        ) as console,
    ):
        supervisor = BrokersSupervisor(options, brokers, shared, manager, console, observation)
        return run(supervisor.serve(names, observe_url))


def _other_ports(options: ServeOptions) -> dict[str, int]:
    given = {"--namesrv": options.namesrv, "--console": options.console}
    return {option: parse_address(text, option)[1] for option, text in given.items() if text != OFF}


def _bind_observe(options: ServeOptions, first: PlannedBroker, settings: BrokerSettings) -> socket.socket | None:
    """Returns the bound socket for the health of all; None if it is off, or if its default port is in use."""
    given = options.observe_port if options.observe_port is not None else settings.observe_port
    if given is not None:
        address = observe_address(given, "--observe-port")
        return None if address is None else bind(*address)
    is_chosen = first.observe is None
    try:
        return bind(own_host(first.host), first.port + OBSERVE_ALL_ABOVE if is_chosen else 0)
    except Unreachable as error:
        log.warning("no health of all brokers: %s; --observe-port chooses another port", error)
        return None


class BrokersSupervisor:
    """Starts, watches and stops the brokers, and runs their name server. Use it within one event loop."""

    def __init__(
        self,
        options: ServeOptions,
        brokers: Sequence[SupervisedBroker],
        shared: Sequence[str],
        manager: ServiceManager,
        console: ConsoleChild,
        observation: BrokersObservation,
    ) -> None:
        self._options = options
        self._settings = BrokerSettings.of(options.settings)
        self._brokers = brokers
        self._shared = shared
        self._name_servers = self._settings.name_servers
        self._manager = manager
        self._console = console
        self._observation = observation
        self._missed = MissedDeletions(options.settings.store_path_root_dir / "penstock" / "missed_deletions.json")
        self._tables = SharedTables([broker.plan.name for broker in brokers], self._missed.load())
        self._tasks = Supervisor(log)
        self._stop = asyncio.Event()
        self._is_ready = False
        self._server: NameServer | None = None
        self._decoder: msgspec.json.Decoder[FromBroker] = msgspec.json.Decoder(
            prepared(FromBroker)  # type: ignore[arg-type]  # a union of types
        )

    async def serve(self, names: socket.socket | None, observe_url: str) -> bool:
        """Runs until a signal arrives. Returns whether every broker stopped cleanly."""
        loop = asyncio.get_running_loop()
        self._observation.loop = loop
        self._tasks.watch_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._on_signal, number)
        namesrv = "" if names is None else await self._start_name_server(names)
        for broker in self._brokers:
            self._tasks.run(broker.plan.name, lambda broker=broker: self._keep_running(broker))  # type: ignore[misc]
        self._tasks.every(_CHECK_S, "web console", self._console.check)
        if self._manager.alive_every_s is not None:
            self._tasks.every(self._manager.alive_every_s, "watchdog", self._manager.alive)
        self._show_phase()
        self._tasks.run("announcement", lambda: self._announce_when_tried(namesrv, observe_url))
        await self._stop.wait()
        self._manager.stopping()
        is_clean = await self._stop_brokers()
        await self._tasks.stop()
        if self._server is not None:
            await self._server.stop(_NAMESRV_GRACE_S)
        log.info("all brokers have stopped" if is_clean else "a broker did not stop cleanly; its next start recovers")
        return is_clean

    async def _start_name_server(self, names: socket.socket) -> str:
        """Starts the name server, and has the brokers register there. Returns its address for clients."""
        access = Access.of(self._settings)
        self._server = server = name_server(self._options.settings, self._settings, access)
        if access is not None:
            self._tasks.every(RELOAD_EVERY_S, "reload of accounts", access.reload_if_changed)
        host, port = names.getsockname()[:2]
        listening = host_text(*await server.start(host, port, names))
        self._name_servers.insert(0, host_text(*await server.start_registration()))
        log.info("listening: name server %s", listening)
        return listening

    # -- one broker ------------------------------------------------------------------------------------------

    async def _keep_running(self, broker: SupervisedBroker) -> None:
        """Runs a broker's process again and again until `_stop`."""
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        while not self._stop.is_set():
            began, served = loop.time(), False
            broker.phase, broker.starts = BrokerPhase.STARTING, broker.starts + 1
            try:
                process, reader = await self._start(broker)
            except OSError as error:
                broker.why = f"its process could not be started: {error.strerror or error}"
            else:
                served, status = await self._run_once(broker, process, reader)
                broker.why = _reason(served, status)
                broker.stopped_cleanly = status == 0 or not served
            if self._stop.is_set():
                break
            pause_s = FIRST_PAUSE_S if served and loop.time() - began > _STABLE_S else pause_s
            broker.phase = BrokerPhase.DOWN
            broker.tried.set()
            log.error("%s: %s; it is started again in %g s, the others serve on", broker.plan.name, broker.why, pause_s)
            self._show_phase()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            pause_s = min(pause_s * 2, MAX_PAUSE_S)
        broker.phase = BrokerPhase.STOPPED
        broker.ended.set()

    async def _start(self, broker: SupervisedBroker) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
        """Starts a broker's process. Raises OSError."""
        command = [sys.executable, "-m", "penstock.cli.main", "serve", f"--supervised={broker.plan.name}"]
        command += [*self._shared, *broker.plan.arguments(), "--namesrv=off", "--console=off"]
        command += [*self._options.log_options, f"--register={';'.join(self._name_servers)}"]
        ours, theirs = socket.socketpair()
        with theirs:
            reader, broker.writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE)
            try:
                broker.process = process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C reaches only this process, which then stops the brokers
                )
            except OSError:
                broker.writer.close()
                raise
        if self._stop.is_set():
            process.terminate()
        return process, reader

    async def _run_once(
        self, broker: SupervisedBroker, process: asyncio.subprocess.Process, reader: asyncio.StreamReader
    ) -> tuple[bool, int]:
        """Serves a broker's link until it ends. Returns whether the broker served, and its exit status."""
        assert broker.writer is not None
        sending = asyncio.create_task(self._send_orders(broker, broker.writer))
        served = False
        try:
            served = await self._receive(broker, reader)
        except (ValueError, msgspec.MsgspecError) as error:  # a line that is too long, or no message
            log.error("%s: its report cannot be read, and it is stopped: %s", broker.plan.name, error)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._tables.disconnect(broker.plan.name)
            broker.writer.close()  # the broker stops, if it still runs
            status = await self._wait(process)
            broker.process = broker.writer = None
        return served, status

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        """Returns the exit status of a broker whose link has ended. Kills it if it does not end."""
        try:
            async with asyncio.timeout(self._settings.stop_limit_millis / 1000 + _KILL_AFTER_S):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()

    async def _receive(self, broker: SupervisedBroker, reader: asyncio.StreamReader) -> bool:
        """Takes a broker's messages until its link ends. Returns whether it has served."""
        name, served = broker.plan.name, False
        while line := await _line(reader):
            message = self._decoder.decode(line)
            if isinstance(message, Greeted):
                served = True
                broker.addresses = message.addresses
                self._tables.connect(name, message.saved_at)
            elif isinstance(message, Report):
                self._tables.take(name, message)
                self._save_missed()
            else:
                self._tables.greeted(name)
                if self._tables.forget_missed(name):
                    self._save_missed()
                await self._wait_for_route(name)
                self._is_serving(broker)
            for other in self._brokers:
                other.has_orders.set()
        return served

    async def _wait_for_route(self, name: str) -> None:
        """Returns when clients find the broker at the name server here, or after some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ROUTE_S):
                while self._server is not None and self._server.routes.master_of(name) is None:
                    await asyncio.sleep(_ROUTE_EVERY_S)

    async def _send_orders(self, broker: SupervisedBroker, writer: asyncio.StreamWriter) -> None:
        while True:
            await broker.has_orders.wait()
            broker.has_orders.clear()
            while (order := self._tables.next_order(broker.plan.name, NAMES_IN_LINE)) is not None:
                writer.write(msgspec.json.encode(order) + b"\n")
                await writer.drain()

    def _save_missed(self) -> None:
        try:
            self._missed.save(self._tables.missed)
        except (StoreFailed, OSError) as error:
            log.error("deletions for brokers that are away are not saved: %s", error)

    # -- how they are ----------------------------------------------------------------------------------------

    def _is_serving(self, broker: SupervisedBroker) -> None:
        broker.phase, broker.why = BrokerPhase.SERVING, ""
        broker.tried.set()
        if broker.starts > 1:
            log.info("%s serves again at %s", broker.plan.name, broker.addresses["broker"])
        self._show_phase()

    def _show_phase(self) -> None:
        """Tells the console and the service manager how far the brokers are."""
        waiting = [broker.plan.name for broker in self._brokers if broker.phase is not BrokerPhase.SERVING]
        phase = f"starting {', '.join(waiting)}" if waiting else ""
        if not waiting and not self._is_ready:
            self._is_ready = True
            self._manager.ready(f"{len(self._brokers)} brokers serve")
        else:
            self._manager.starting(phase or f"{len(self._brokers)} brokers serve")
        self._observation.is_ready = self._is_ready
        if not self._is_ready or not waiting:
            self._console.notify(phase)

    # -- stopping --------------------------------------------------------------------------------------------

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            log.error("%s again: all brokers are killed; the next start will recover", number.name)
            for broker in self._brokers:
                _signal(broker, signal.SIGKILL)
            logging.shutdown()
            os._exit(exit_codes.PROBLEM)
        log.info("%s: stopping %d brokers", number.name, len(self._brokers))
        self._stop.set()

    async def _stop_brokers(self) -> bool:
        """Stops all at once. Returns whether all of those that served ended with status 0."""
        await asyncio.gather(*map(self._stop_broker, self._brokers))
        return all(broker.stopped_cleanly for broker in self._brokers)

    async def _stop_broker(self, broker: SupervisedBroker) -> None:
        if broker.process is not None:
            if broker.phase is not BrokerPhase.SERVING:
                _signal(broker, signal.SIGTERM)  # it does not read the link before it serves
            elif broker.writer is not None:
                broker.writer.close()
        try:
            async with asyncio.timeout(self._settings.stop_limit_millis / 1000 + _KILL_AFTER_S):
                await broker.ended.wait()
        except TimeoutError:
            log.error("%s has not stopped in time, and is killed; its next start will recover", broker.plan.name)
            _signal(broker, signal.SIGKILL)
            await broker.ended.wait()

    # -- what people see -------------------------------------------------------------------------------------

    async def _announce_when_tried(self, namesrv: str, observe_url: str) -> None:
        """Prints the addresses once each broker serves, or could not start the first time."""
        for broker in self._brokers:
            await broker.tried.wait()
        self._announce(namesrv, observe_url)

    def _announce(self, namesrv: str, observe_url: str) -> None:
        folder = self._options.settings.store_path_root_dir
        if self._options.as_json:
            brokers = [
                {
                    "name": broker.plan.name,
                    "store": str(broker.plan.store.absolute()),
                    "broker": broker.addresses.get("broker", ""),
                    "advertised": broker.addresses.get("advertised", ""),
                    "observe": broker.addresses.get("observe", ""),
                }
                for broker in self._brokers
            ]
            write_json({"brokers": brokers, "namesrv": namesrv, "console": self._console.link, "observe": observe_url})
            flush()
            return
        write(f"Penstock {__version__} serves {len(self._brokers)} stores in {folder}\n")
        for broker in self._brokers:
            where = broker.addresses.get("broker") or f"does not serve yet: {broker.why}"
            write(f"  {broker.plan.name:<12} {where}\n")
        if namesrv:
            write(f"  name server  {namesrv}\n")
        if self._console.link:
            write(f"  console      {self._console.link}\n")
        if observe_url:
            write(f"  health       {observe_url}/healthz  (and /readyz, /metrics)\n")
        clients = namesrv or ";".join(self._name_servers)
        write(f"Clients connect with NAMESRV_ADDR={clients}\nStop with Ctrl-C or SIGTERM.\n")
        flush()


def _signal(broker: SupervisedBroker, number: signal.Signals) -> None:
    if broker.process is not None:
        with suppress(ProcessLookupError):
            broker.process.send_signal(number)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Returns the next line; empty at the end of the link."""
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


def _reason(served: bool, status: int) -> str:
    """Returns why a broker's process has ended, as far as its exit status tells."""
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"
    return how if served else f"could not start and {how}"


class BrokersObservation:
    """What `penstock serve --brokers` answers about all of its brokers: /healthz, /readyz and /metrics.

    /readyz is 200 once all have served, and as long as one of them does: clients find the others. `answer` runs in the
    responder's thread and asks the supervisor's loop.
    """

    def __init__(self, brokers: Sequence[SupervisedBroker]) -> None:
        self._brokers = brokers
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_ready = False

    async def answer(self, path: str) -> HttpAnswer | None:
        """Returns the answer to a GET; None if there is no such path."""
        if path not in ("/metrics", "/healthz", "/readyz"):
            return None
        if self.loop is None:
            return HttpAnswer.of_json({"status": "ok", "ready": False, "why": "starting"}, _UNAVAILABLE)
        try:
            phases, ready, families = await ask_loop(self.loop, self._look)
        except TimeoutError:
            return HttpAnswer.of_json({"status": "failed", "why": SILENT_LOOP}, _UNAVAILABLE)
        if path == "/metrics":
            return HttpAnswer(HTTPStatus.OK, render(itertools.chain(families, process_metrics())), CONTENT_TYPE)
        if path == "/healthz":
            return HttpAnswer.of_json({"status": "ok", "brokers": phases})
        return HttpAnswer.of_json({"ready": ready, "brokers": phases}, HTTPStatus.OK if ready else _UNAVAILABLE)

    def _look(self) -> tuple[dict[str, str], bool, list[Family]]:
        phases = {
            broker.plan.name: f"{broker.phase.value}: {broker.why}" if broker.why else broker.phase.value
            for broker in self._brokers
        }
        serving = any(broker.phase is BrokerPhase.SERVING for broker in self._brokers)
        return phases, self.is_ready and serving, list(self._families())

    def _families(self) -> Iterator[Family]:
        up = Family("penstock_supervised_broker_up", "gauge", "1 if this broker serves, else 0.", ["broker"])
        starts = Family(
            "penstock_supervised_broker_restarts_total", "counter", "How often it was started again.", ["broker"]
        )
        for broker in self._brokers:
            up.add([broker.plan.name], broker.phase is BrokerPhase.SERVING)
            starts.add([broker.plan.name], max(0, broker.starts - 1))
        yield from (up, starts)


_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE
