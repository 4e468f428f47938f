"""`penstock serve`, as a process: what it prints, how it ends, and what is left when it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import RawClient, bodies, ok
from support.loopback import free_port

from penstock import __version__
from penstock.cli.console_child import OFF, ConsoleChild
from penstock.errors import PenstockError
from penstock.format import kernels
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.codes import RequestCode
from penstock.remoting.connection import connect
from penstock.store import Settings
from penstock.store.files.file_io import Files

if TYPE_CHECKING:
    from cli.conftest import Run

ANYWHERE = ("--profile", "dev", "--listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:0", "--console", "off")
WITHOUT_PROFILE = ANYWHERE[2:]


class Served:
    """A running `penstock serve`."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "serve", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=lambda lines: self.errors.extend(lines), args=(self.process.stderr,))
        self._reader.start()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def address(self) -> dict[str, Any]:
        """What `--json` prints: the chosen addresses."""
        text = self.line()
        assert text, "".join(self.errors)
        found: dict[str, Any] = json.loads(text)
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(60)
        self._reader.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    @property
    def said(self) -> str:
        return "".join(self.errors)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*arguments: object, store: Path = tmp_path / "store") -> Served:
        started.append(Served("--store", store, *arguments))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
            served.wait()


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def with_client(address: str, act: Callable[[RawClient], Any]) -> Any:
    async def run() -> Any:
        client = RawClient(await connect(split(address)), asyncio.Queue())
        try:
            return await act(client)
        finally:
            client.close()

    return asyncio.run(run())


def test_it_prints_where_it_listens_serves_and_stops_on_sigterm(serve: Callable[..., Served]) -> None:
    served = serve(*ANYWHERE)
    lines = [served.line() for _ in range(6)]
    assert lines[0].startswith("Penstock ")
    broker = lines[1].split()[1]
    name_server = lines[2].split()[2]
    assert lines[1].startswith("  broker       127.0.0.1:")
    assert lines[3].startswith("  metrics      http://127.0.0.1:")
    assert lines[4] == f"Clients connect with NAMESRV_ADDR={name_server}\n"
    route = with_client(name_server, lambda client: client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102"))
    found = TopicRouteData.from_bytes(ok(route).body)
    assert found.broker_datas[0].broker_addrs == {0: broker}
    reply = ok(with_client(broker, lambda client: client.send("orders", b"hello")))
    assert int(reply.ext["msgId"][8:16], 16) == split(broker)[1], "the id leads to this port"
    assert served.end() == 0
    assert "INFO penstock.broker: created topic orders (4 queues)\n" in served.said


def test_the_log_tells_the_life_of_a_broker(serve: Callable[..., Served], tmp_path: Path) -> None:
    first = serve(*ANYWHERE, "--json", "--log-format", "json", "--set", "flushDiskType=SYNC_FLUSH")
    ok(with_client(first.address()["broker"], lambda client: client.send("orders", b"hello")))
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    served = serve(*ANYWHERE, "--json", "--log-format", "json", "--log-level", "debug")
    told = served.address()
    with_client(told["broker"], lambda client: client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders"))
    assert served.end() == 0
    lines = [json.loads(line)["message"] for line in served.errors]
    start = f"Penstock {__version__} starts: store {(tmp_path / 'store').absolute()}, process {served.process.pid}, "
    story = [
        f"{start}Python {platform.python_version()}, {kernels.active} kernels",
        "settings that differ from the defaults: ",
        "the store is recovered after an unclean end in ",
        f"listening: broker {told['broker']} (broker-a of DefaultCluster, advertised as {told['advertised']})",
        "connection from 127.0.0.1:",
        "administration: delete topic topic=orders by=127.0.0.1:",
        "SIGTERM: stopping",
        "stopped in ",
    ]
    found = [[at for at, line in enumerate(lines) if line.startswith(part)] for part in story]
    assert all(found), list(zip(story, found, strict=True))
    order = [places[0] for places in found]
    assert order == sorted(order)
    changed = lines[order[1]]
    assert "mappedFileSizeCommitLog=1048576" in changed
    assert "flushDiskType" not in changed, "this start did not change it"
    assert re.search(r"log of \S+ \S+ up to offset [1-9]\d*, .* topics 1$", lines[order[2]])


def test_in_json_everything_is_an_object_even_why_it_cannot_start(serve: Callable[..., Served]) -> None:
    served = serve(*ANYWHERE, "--log-format", "json", "--set", "noSuchSetting=1")
    assert served.wait() == 2
    [line] = map(json.loads, served.errors)
    assert (line["level"], "unknown setting 'noSuchSetting'" in line["message"]) == ("critical", True)
    first = serve(*ANYWHERE, "--json")
    first.address()
    second = serve(*ANYWHERE, "--log-format", "json")
    assert second.wait() == 2
    assert "in use" in json.loads(second.errors[-1])["message"]
    assert first.end() == 0


@pytest.mark.usefixtures("hangup_ends")
def test_the_end_of_its_terminal_is_a_clean_end_unless_it_is_ignored(serve: Callable[..., Served]) -> None:
    served = serve(*ANYWHERE, "--json")
    served.address()
    assert served.end(signal.SIGHUP) == 0
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; the child inherits it
    try:
        ignoring = serve(*ANYWHERE, "--json")
    finally:
        signal.signal(signal.SIGHUP, before)
    broker = ignoring.address()["broker"]
    ignoring.process.send_signal(signal.SIGHUP)
    ok(with_client(broker, lambda client: client.send("orders", b"hello")))
    assert ignoring.end() == 0


def test_ctrl_c_is_a_clean_end_too_and_the_store_goes_on(serve: Callable[..., Served]) -> None:
    first = serve(*ANYWHERE, "--json")
    broker = first.address()["broker"]
    ok(with_client(broker, lambda client: client.send("orders", b"hello")))
    assert first.end(signal.SIGINT) == 0
    second = serve(*ANYWHERE, "--json")
    assert bodies(with_client(second.address()["broker"], lambda client: client.pull("orders"))) == [b"hello"]
    assert second.end() == 0


def test_what_was_acknowledged_survives_a_kill(serve: Callable[..., Served]) -> None:
    first = serve(*ANYWHERE, "--json")

    async def send_many(client: RawClient) -> None:
        for number in range(200):
            ok(await client.send("orders", b"%d" % number))

    with_client(first.address()["broker"], send_many)
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = serve(*ANYWHERE, "--json")

    async def pull_all(client: RawClient) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < 200:
            found += bodies(await client.pull("orders", len(found)))
        return found

    found = with_client(second.address()["broker"], pull_all)
    assert found == [b"%d" % number for number in range(200)]
    assert second.end() == 0


def test_a_store_keeps_its_file_sizes_without_being_told(serve: Callable[..., Served]) -> None:
    assert serve_once(serve(*ANYWHERE, "--json")) == 0
    assert serve_once(serve(*WITHOUT_PROFILE, "--json")) == 0


def test_a_store_by_default_takes_little_of_the_disk(serve: Callable[..., Served]) -> None:
    served = serve(*WITHOUT_PROFILE, "--json")
    found = served.address()
    ok(with_client(found["broker"], lambda client: client.send("orders", b"hello", properties={"KEYS": "k"})))
    assert Files().allocated(Path(found["store"])) < 2_000_000
    assert served.end() == 0
    assert {path.stat().st_size for path in (Path(found["store"]) / "commitlog").iterdir()} == {1 << 30}


def serve_once(served: Served) -> int:
    ok(with_client(served.address()["broker"], lambda client: client.send("orders", properties={"KEYS": "k"})))
    return served.end()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "nowhere"], "--listen is 'nowhere'; it must be HOST:PORT"),
        (["--namesrv", "127.0.0.1", "--listen", "127.0.0.1:0"], "--namesrv is '127.0.0.1'"),
        (["--register", "nowhere"], "namesrvAddr is 'nowhere'"),
        (["--console", "nowhere"], "--console is 'nowhere'"),
        (["--observe-port", "nowhere"], "--observe-port is 'nowhere'; it must be PORT, HOST:PORT or off"),
        (["--set", "observePort=65536"], "observePort is '65536'"),
        (["--profile", "prod"], "'prod'"),
        (["--set", "brokerPermission=99"], "brokerPermission is '99'"),
        (["--set", "noSuchSetting=1"], "unknown setting 'noSuchSetting'"),
        (["--log-format", "xml"], "'xml'"),
    ],
)
def test_bad_options_are_one_sentence_and_status_2(run: Run, arguments: list[str], words: str, tmp_path: Path) -> None:
    assert words in run("serve", "--store", tmp_path / "store", *arguments).refused()
    assert not (tmp_path / "store").exists()


def test_a_bad_address_of_the_name_server_is_said_before_the_store_is_touched(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # it is said before a port is bound
        served = serve("--namesrv", "127.0.0.1", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert served.wait() == 2
    assert served.said.startswith("penstock: --namesrv is '127.0.0.1'; it must be HOST:PORT")
    assert served.said.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_a_port_that_is_in_use_is_said_before_the_store_is_touched(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        served = serve("--profile", "dev", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert served.wait() == 2
    assert "cannot listen" in served.said
    assert not (tmp_path / "store").exists()


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_health_have_a_port_of_their_own_and_need_no_token(serve: Callable[..., Served]) -> None:
    served = serve(*ANYWHERE, "--json", "--log-level", "error")
    told = served.address()
    ok(with_client(told["broker"], lambda client: client.send("orders", b"hello")))
    assert fetch(f"{told['observe']}/healthz") == (200, '{"status": "ok", "why": ""}\n')
    assert fetch(f"{told['observe']}/readyz")[0] == 200
    status, text = fetch(f"{told['observe']}/metrics")
    assert status == 200
    assert re.search(r'^rocketmq_messages_in_total\{.*topic="orders".*\} 1$', text, re.MULTILINE)
    assert served.end() == 0
    assert served.said == ""


def test_the_port_for_metrics_is_2_above_the_brokers_unless_it_is_chosen(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    by_default = [option for option in ANYWHERE if option != "--listen"]
    by_default.remove("127.0.0.1:0")
    port = free_port()
    served = serve(*by_default, "--listen", f"127.0.0.1:{port}", "--json")
    assert served.address()["observe"] in (f"http://127.0.0.1:{port + 2}", "")  # another process may have that port
    assert served.end() == 0
    off = serve(*ANYWHERE, "--json", "--observe-port", "off")
    assert off.address()["observe"] == ""
    assert off.end() == 0
    chosen = serve(*ANYWHERE, "--json", "--set", "observePort=off", "--observe-port", "0")
    assert fetch(chosen.address()["observe"] + "/healthz")[0] == 200
    assert chosen.end() == 0


def test_a_port_for_metrics_that_was_asked_for_and_is_in_use_is_said(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        served = serve(*ANYWHERE, "--observe-port", f"{taken.getsockname()[1]}")
        assert served.wait() == 2
    assert "cannot listen" in served.said
    assert not (tmp_path / "store").exists()


def test_a_store_that_is_in_use_is_said(serve: Callable[..., Served]) -> None:
    first = serve(*ANYWHERE, "--json")
    first.address()
    second = serve(*ANYWHERE)
    assert second.wait() == 2
    assert "in use" in second.said
    assert first.end() == 0


def test_it_registers_with_others_and_needs_no_name_server_of_its_own(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    one = serve(*ANYWHERE, "--json")
    name_server = one.address()["namesrv"]
    other = serve(
        *("--profile", "dev", "--listen", "127.0.0.1:0", "--namesrv", "off", "--register", name_server, "--json"),
        *("--console", "off"),
        *("--set", "brokerName=broker-b"),
        store=tmp_path / "other",
    )
    assert other.address()["namesrv"] == ""

    async def route(client: RawClient) -> set[str]:
        while True:
            reply = ok(await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102"))
            names = {data.broker_name for data in TopicRouteData.from_bytes(reply.body).broker_datas}
            if len(names) == 2:
                return names
            await asyncio.sleep(0.01)

    assert with_client(name_server, route) == {"broker-a", "broker-b"}
    assert other.end() == 0
    assert one.end() == 0


def test_the_log_in_json_has_an_object_a_line_and_never_a_body(serve: Callable[..., Served]) -> None:
    served = serve(*ANYWHERE, "--json", "--log-format", "json", "--log-level", "debug")
    secret = b"do-not-log-this-body"
    ok(with_client(served.address()["broker"], lambda client: client.send("orders", secret)))
    assert served.end() == 0
    lines = [json.loads(line) for line in served.errors]
    assert any(line["message"].startswith("created topic orders") for line in lines)
    assert all(set(line) >= {"time", "level", "logger", "message"} for line in lines)
    assert secret.decode() not in served.said


def test_settings_without_effect_are_named(serve: Callable[..., Served]) -> None:
    served = serve(*ANYWHERE, "--json", "--set", "sendMessageThreadPoolNums=64")
    served.address()
    assert served.end() == 0
    assert "sendMessageThreadPoolNums has no effect here." in served.said


def test_whoever_opens_the_door_to_others_is_told(serve: Callable[..., Served]) -> None:
    served = serve("--profile", "dev", "--listen", "0.0.0.0:0", "--namesrv", "127.0.0.1:0", "--json")
    told = served.address()
    assert not told["advertised"].startswith("0.0.0.0")
    assert served.end() == 0
    assert "aclEnable=false" in served.said


LEAVES = """
import sys
from penstock.broker.send_acks import PendingAcks
from penstock.cli.main import main

def fails(self):
    raise MemoryError("planted")

PendingAcks._settle_ended = fails
raise SystemExit(main())
"""


def test_a_broker_that_cannot_go_on_closes_its_store_and_fails(tmp_path: Path) -> None:
    arguments = ["serve", "--store", tmp_path / "store", *ANYWHERE, "--json", "--set", "flushDiskType=SYNC_FLUSH"]
    arguments += ["--set", "stopLimitMillis=3000"]
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["broker"]
            with pytest.raises(PenstockError):
                with_client(address, lambda client: client.send("orders"))
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "acks of sends: MemoryError('planted'); this server cannot go on, and stops" in said
    assert not (tmp_path / "store" / "abort").exists(), "the store was closed"


def test_the_end_of_the_console_is_noticed() -> None:
    child = ConsoleChild(OFF, Settings(), None, None)
    child.check()
    child._process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], stdin=subprocess.PIPE)
    child._process.wait(30)
    with child, pytest.raises(PenstockError, match="ended with status 3"):
        child.check()


def test_a_second_signal_ends_it_at_once(serve: Callable[..., Served]) -> None:
    """Both come while it is stopped, so that it sees the second before it has done anything about the first."""
    served = serve(*ANYWHERE, "--json")
    served.address()
    os.kill(served.process.pid, signal.SIGSTOP)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        os.kill(served.process.pid, number)
    assert served.wait() == 1


def test_access_control_without_accounts_does_not_start(serve: Callable[..., Served]) -> None:
    served = serve(*ANYWHERE, "--set", "aclEnable=true")
    assert served.wait() == 2
    assert "aclEnable=true needs aclFile" in served.said


def test_with_access_control_broker_and_name_server_ask_for_an_account(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts: [{accessKey: operations, secretKey: hard-to-guess, admin: true}]")
    accounts.chmod(0o600)
    served = serve(*ANYWHERE, "--json", "--set", "aclEnable=true", "--set", f"aclFile={accounts}")
    told = served.address()
    request = {"namespace": "n", "key": "k", "value": "v"}
    refusals = [
        with_client(told["broker"], lambda client: client.send("orders")),
        with_client(told["namesrv"], lambda client: client.ask(RequestCode.PUT_KV_CONFIG, **request)),
    ]
    assert [reply.code for reply in refusals] == [1, 1]
    assert all("accessKey" in reply.remark for reply in refusals)
    assert served.end() == 0
    assert "hard-to-guess" not in served.said


@pytest.mark.parametrize("name", ["onMaster", "onSlave"])
def test_a_command_for_a_role_that_is_not_there_is_said_at_the_start(run: Run, tmp_path: Path, name: str) -> None:
    pairs = ("failover=etcd", "dcsAddr=127.0.0.1:1", f"{name}=/nowhere/move up")
    options = [part for pair in pairs for part in ("--set", pair)]
    said = run("serve", "--store", str(tmp_path / "store"), *options).refused()
    assert f"{name} names the command /nowhere/move, which is not there or is not executable" in said
    assert not (tmp_path / "store").exists()
