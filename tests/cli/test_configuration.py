"""Where `penstock serve` finds its configuration, and that it says where each value came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli.configuration import find_config

if TYPE_CHECKING:
    from cli.conftest import Run


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("PENSTOCK_CONFIG", raising=False)


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_usual_places_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/etc/penstock/broker.conf").exists():
        assert find_config(None) is None
    own = put(tmp_path / "home" / ".config" / "penstock" / "broker.conf")
    assert find_config(None) == own
    other = put(tmp_path / "xdg" / "penstock" / "broker.conf")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert find_config(None) == other
    put(tmp_path / "broker.conf")
    assert find_config(None) == Path("broker.conf")
    monkeypatch.setenv("PENSTOCK_CONFIG", "elsewhere.conf")
    assert find_config(None) == Path("elsewhere.conf")
    assert find_config(Path("given.conf")) == Path("given.conf")


def test_it_is_shown_with_where_each_value_came_from(run: Run, tmp_path: Path) -> None:
    put(
        tmp_path / "broker.conf",
        "# settings\nmapedFileSizeCommitLog=1048576\nbrokerName=broker-b\n\nfileReservedTime=48\n",
    )
    options = ["--set", "fileReservedTime=24", "--profile", "dev", "--store", "somewhere", "--print-config"]
    lines = run("serve", *options).done().out.splitlines()
    assert lines[0] == "# file: broker.conf"
    assert "# --listen 127.0.0.1:10911" in lines
    pairs = [line.split("  # ") for line in lines if "  # " in line]
    origins = {setting.strip(): origin for setting, origin in pairs}
    assert origins["mappedFileSizeCommitLog=1048576"] == "broker.conf:2", "an alias is the same setting"
    assert origins["brokerName=broker-b"] == "broker.conf:3"
    assert origins["fileReservedTime=24"] == "--set"
    assert origins["maxIndexNum=20000"] == "--profile dev"
    assert origins["storePathRootDir=somewhere"] == "--store"
    assert origins["flushDiskType=ASYNC_FLUSH"] == "default"
    assert not (tmp_path / "somewhere").exists(), "nothing was started"


@pytest.mark.parametrize(
    ("options", "grows", "origin"),
    [
        ([], "true", "no configuration file"),
        (["--config", "own.conf"], "false", "default"),
        (["--set", "growLogFiles=false"], "false", "--set"),
        (["--set", "mappedFileSizeCommitLog=1073741824"], "false", "default"),
        (["--profile", "dev"], "false", "default"),
    ],
)
def test_the_log_grows_unless_a_file_or_a_size_is_given(
    run: Run, tmp_path: Path, options: list[str], grows: str, origin: str
) -> None:
    put(tmp_path / "own.conf", "brokerName=broker-b\n")
    lines = run("serve", *options, "--print-config").done().out.splitlines()
    shown = [line.split("  # ") for line in lines if line.startswith("growLogFiles=")]
    assert [[setting.strip(), origin] for setting, origin in shown] == [[f"growLogFiles={grows}", origin]]


def test_for_a_program_it_is_json_and_secrets_are_hidden(run: Run) -> None:
    secret = ("--set", "tls.server.keyPassword=hush", "--register", "127.0.0.1:9876")
    ran = run("serve", *secret, "--print-config", "--json").done()
    found = json.loads(ran.out)
    rows = {row["name"]: (row["value"], row["from"]) for row in found["settings"]}
    assert found["config"] is None
    assert found["addresses"]["--observe-port"] == "2 above the broker's port"
    assert rows["namesrvAddr"] == ("127.0.0.1:9876", "--register")
    assert rows["tls.server.keyPassword"] == ("***", "--set")
    assert "hush" not in ran.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--config", "nothing.conf"], "cannot read the settings"),
        (["--namesrv", "127.0.0.1"], "--namesrv is '127.0.0.1'"),
        (["--set", "noSuchSetting=1"], "unknown setting"),
    ],
)
def test_what_could_not_start_is_not_shown_either(run: Run, options: list[str], words: str) -> None:
    assert words in run("serve", *options, "--print-config").refused()


def test_a_file_that_the_environment_names_has_to_be_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CONFIG", "nothing.conf")
    assert "nothing.conf" in run("serve", "--print-config").refused()
