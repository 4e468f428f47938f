"""What the settings of failover mean, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker.failover.failover_settings import check_failover, engine_of, read_account
from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings
from penstock.store import Settings


def settings_of(*pairs: str) -> Settings:
    return Settings.load(None, ["failover=etcd", "dcsAddr=127.0.0.1:2379", *pairs])


def test_the_settings_that_the_election_decides_are_refused() -> None:
    check_failover(settings_of())
    given = settings_of("brokerRole=SLAVE", "brokerId=2", "masterAddr=127.0.0.1:1", "haMasterAddress=127.0.0.1:2")
    with pytest.raises(BadSettings, match="remove brokerRole, haMasterAddress, brokerId, masterAddr"):
        check_failover(given)
    with pytest.raises(BadSettings, match="fixed haListenPort"):
        check_failover(settings_of("haListenPort=0"))


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        (["failover=raft"], "it must be off, etcd or zookeeper"),
        (["failover=zookeeper"], "needs dcsAddr"),
        (["failover=etcd"], "needs dcsAddr"),
        (["failover=etcd", "dcsAddr=x"], "dcsAddr"),
        (["failover=etcd", "dcsAddr=127.0.0.1:2379", "failoverTtlMillis=2500"], "whole seconds"),
        (["failover=etcd", "dcsAddr=127.0.0.1:2379", "failoverTtlMillis=1000"], "failoverTtlMillis"),
        (["failover=etcd", "dcsAddr=127.0.0.1:2379", "dcsPrefix=penstock"], "begin with /"),
        (["failsafe=sometimes"], "peers, off or alone"),
    ],
)
def test_bad_settings_are_refused(pairs: list[str], why: str) -> None:
    with pytest.raises(BadSettings, match=why):
        BrokerSettings.of(Settings.load(None, pairs))


def test_an_account_file_has_a_user_and_a_password_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "account"
    path.write_text("# etcd\nuser: broker\npassword: s3 cret\n")
    path.chmod(0o600)
    assert read_account(path) == ("broker", "s3 cret")
    path.chmod(0o644)
    with pytest.raises(BadSettings, match="chmod 600"):
        read_account(path)
    path.chmod(0o600)
    for text, why in (
        ("user: a\n", "needs the lines"),
        ("user: a\nsecret: b\n", "remove others"),
        ("", "needs the lines"),
    ):
        path.write_text(text)
        with pytest.raises(BadSettings, match=why):
            read_account(path)
    with pytest.raises(BadSettings, match="cannot be read"):
        read_account(tmp_path / "none")


def test_a_certificate_that_cannot_be_read_is_refused_before_anything_starts(tmp_path: Path) -> None:
    settings = settings_of(f"dcs.tls.trustCertPath={tmp_path / 'none.pem'}")
    with pytest.raises(BadSettings, match="trusted certificates cannot be read"):
        engine_of(settings, BrokerSettings.of(settings))


_ENGINE_OF = """
import sys
from penstock.broker.failover.failover_settings import engine_of
from penstock.broker.settings import BrokerSettings
from penstock.store import Settings
if sys.argv[2] == "without":
    sys.modules["kazoo"] = None
settings = Settings.load(None, [f"failover={sys.argv[1]}", "dcsAddr=127.0.0.1:2181"])
try:
    engine_of(settings, BrokerSettings.of(settings))
    print(any(name.partition(".")[0] == "kazoo" for name in sys.modules))
except Exception as error:
    print(type(error).__name__, error)
"""


def _engine_of(engine: str, kazoo: str) -> str:
    """What a process of its own says of an engine, with the package kazoo or without."""
    command = [sys.executable, "-c", _ENGINE_OF, engine, kazoo]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_etcd_does_not_load_what_zookeeper_needs() -> None:
    assert _engine_of("etcd", "with") == "False"


def test_a_missing_package_is_said_in_one_sentence() -> None:
    assert _engine_of("zookeeper", "without") == (
        "MissingPackage failover=zookeeper needs the package kazoo: pip install 'penstock[zookeeper]'"
    )
