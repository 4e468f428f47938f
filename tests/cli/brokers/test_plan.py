"""The plan of several brokers: names, ports and stores, and what is refused before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli.brokers.names_and_ports import has_messages, names
from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from cli.conftest import Run


def make_store(path: Path, messages: int = 0) -> None:
    with MessageStore.open(path, Settings.dev()) as store:
        for number in range(messages):
            assert store.put(Message("orders", b"%d" % number)).ok


def test_the_settings_show_each_brokers_name_ports_and_store(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "stores"
    shown = run("serve", "--store", folder, "--brokers", 3, "--print-config", "--json").done().json
    assert [(each["name"], each["listen"], each["store"]) for each in shown["brokers"]] == [
        ("broker-a", "127.0.0.1:10911", f"{folder}/broker-a"),
        ("broker-b", "127.0.0.1:10921", f"{folder}/broker-b"),
        ("broker-c", "127.0.0.1:10931", f"{folder}/broker-c"),
    ]
    text = run("serve", "--store", folder, "--brokers", 2, "--print-config").done().out
    assert f"# name broker-b, listen 127.0.0.1:10921, observe 2 above its port, store {folder}/broker-b\n" in text
    assert "brokers" not in run("serve", "--store", folder, "--print-config", "--json").done().json
    assert not folder.exists()


def test_a_configuration_file_is_for_all_and_its_names_and_ports_for_the_first(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(
        "brokerName=shop\nlistenPort=7000\nhaListenPort=7001\nobservePort=0.0.0.0:9100\nbrokerRole=SYNC_MASTER\n"
    )
    options = ("--store", tmp_path / "stores", "--config", config, "--brokers", 2, "--print-config", "--json")
    shown = run("serve", *options).done().json["brokers"]
    assert [(each["name"], each["listen"], each["slaves"], each["observe"]) for each in shown] == [
        ("shop-a", "127.0.0.1:7000", "7001", "0.0.0.0:7002"),
        ("shop-b", "127.0.0.1:7010", "7011", "0.0.0.0:7012"),
    ]
    assert run("serve", *options, "--observe-port", "off").done().json["brokers"][1]["observe"] == "off"


def test_names_end_in_a_letter() -> None:
    assert names("broker-a", 2) == ["broker-a", "broker-b"]
    assert names("shop", 2) == ["shop-a", "shop-b"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--brokers", "0"], "--brokers is 0; it must be 1 to 26"),
        (["--brokers", "27"], "--brokers is 27; it must be 1 to 26"),
        (["--brokers", "2", "--set", "storePathCommitLog=/x"], "storePathCommitLog names one folder"),
        (["--brokers", "2", "--set", "brokerRole=SLAVE", "--set", "brokerId=1"], "--brokers starts masters"),
        (["--brokers", "2", "--namesrv", "off"], "--brokers needs a name server"),
        (["--brokers", "2", "--listen", "127.0.0.1:65530"], "port 65530 is too high for 2 brokers"),
        (["--brokers", "2", "--listen", "127.0.0.1:9866", "--namesrv", "127.0.0.1:9876"], "which is that of --namesrv"),
        (["--brokers", "2", "--set", "haListenPort=10921", "--namesrv", "127.0.0.1:0"], "which is that of broker-a"),
    ],
)
def test_what_several_brokers_cannot_share_is_one_sentence(
    run: Run, arguments: list[str], words: str, tmp_path: Path
) -> None:
    assert words in run("serve", "--store", tmp_path / "stores", "--console", "off", *arguments).refused()
    assert not (tmp_path / "stores").exists()


def test_one_broker_is_not_started_on_the_stores_of_several(run: Run, tmp_path: Path) -> None:
    make_store(tmp_path / "stores" / "broker-a")
    make_store(tmp_path / "stores" / "broker-b", 1)
    refused = run("serve", "--store", tmp_path / "stores", "--console", "off").refused()
    assert "holds the stores of several brokers (broker-a, broker-b): start it with --brokers 2" in refused
    assert not (tmp_path / "stores" / "commitlog").exists()


def test_several_brokers_are_not_started_on_the_store_of_one(run: Run, tmp_path: Path) -> None:
    make_store(tmp_path / "store", 1)
    refused = run("serve", "--store", tmp_path / "store", "--brokers", 2, "--console", "off").refused()
    assert f"{tmp_path / 'store'} is the store of one broker" in refused


def test_a_store_with_messages_is_left_out_only_if_the_user_says_so(run: Run, tmp_path: Path) -> None:
    make_store(tmp_path / "stores" / "broker-c", 1)
    make_store(tmp_path / "stores" / "broker-d")
    assert has_messages(tmp_path / "stores" / "broker-c", Settings())
    assert not has_messages(tmp_path / "stores" / "broker-d", Settings())
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it does not start
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ("--store", tmp_path / "stores", "--brokers", 2, "--console", "off", "--namesrv", "127.0.0.1:0")
        refused = run("serve", *options, "--listen", listen).refused()
        assert "has messages in broker-c, which --brokers 2 would not serve" in refused
        assert (
            "broker-a needs its own port: cannot listen"
            in run("serve", *options, "--listen", listen, "--leave-out").refused()
        )
