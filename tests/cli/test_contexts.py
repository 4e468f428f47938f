"""`penstock context`: a cluster's address, account and certificates under a name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from client.test_access import ACCOUNTS
from support.loopback import make_authority, make_certificate

from penstock.testing import broker

if TYPE_CHECKING:
    from cli.conftest import Run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without contexts, and an environment without addresses."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("PENSTOCK_CONTEXT", raising=False)
    return tmp_path / "home"


def test_a_context_holds_address_account_and_certificates(run: Run, tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    own = make_certificate(tmp_path, "broker", authority)
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    account = tmp_path / "tools.yml"
    account.write_text("accessKey: operator\nsecretKey: operator-secret\n")
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": own.certificate,
        "tls.server.keyPath": own.key,
        "aclEnable": True,
        "aclFile": tmp_path / "plain_acl.yml",
    }
    with broker(settings=settings) as b:
        place = ("--namesrv", b.namesrv, "--account", account, "--trust", authority.certificate)
        assert run("context", "set", "prod", *place).done().out == "set context prod (current)\n"
        assert run("topic", "create", "mine").done().out.startswith("created topic mine")
        run("context", "set", "other", "--namesrv", "127.0.0.1:1").done()
        assert "mine" in run("topic", "list", "--names").done().out
        run("context", "use", "other").done()
        assert "127.0.0.1:1" in run("topic", "list").refused()
        assert "mine" in run("topic", "list", "--names", "--context", "prod").done().out


def test_the_account_of_the_current_context_is_not_sent_to_another_address(run: Run, tmp_path: Path) -> None:
    account = tmp_path / "tools.yml"
    account.write_text("accessKey: operator\nsecretKey: operator-secret\n")
    run("context", "set", "prod", "--namesrv", "127.0.0.1:1", "--account", account).done()
    account.unlink()
    assert "the account cannot be read" in run("topic", "list").refused()
    with broker() as b:
        run("topic", "list", "-n", b.namesrv).done()


def test_the_environment_names_a_context(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("context", "set", "one", "--namesrv", "127.0.0.1:1").done()
    run("context", "set", "two", "--namesrv", "127.0.0.1:2").done()
    assert "127.0.0.1:1" in run("topic", "list").refused()
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:3")
    assert "127.0.0.1:3" in run("topic", "list").refused()
    monkeypatch.setenv("PENSTOCK_CONTEXT", "two")
    assert "127.0.0.1:2" in run("topic", "list").refused()
    assert "127.0.0.1:1" in run("topic", "list", "--context", "one").refused()


def test_contexts_are_listed_changed_and_deleted(run: Run, home: Path) -> None:
    run("context", "set", "one", "--namesrv", "127.0.0.1:1").done()
    run("context", "set", "two", "--namesrv", "127.0.0.1:2").done()
    run("context", "set", "one", "--namesrv", "127.0.0.1:3").done()
    rows = [(each["name"], each["namesrv"], each["current"]) for each in run("context", "list", "--json").done().json]
    assert rows == [("one", "127.0.0.1:3", True), ("two", "127.0.0.1:2", False)]
    assert "*  one   127.0.0.1:3" in run("context", "list").done().out
    run("context", "delete", "one", "--yes").done()
    assert [each["current"] for each in run("context", "list", "--json").done().json] == [False]
    file = home / "penstock" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["contexts.json"]


def test_what_is_wrong_with_contexts_is_one_sentence(run: Run, home: Path, tmp_path: Path) -> None:
    run("context", "set", "prod", "--namesrv", "127.0.0.1:1").done()
    assert "did you mean 'prod'?" in run("context", "use", "prodd").refused()
    assert "did you mean 'prod'?" in run("topic", "list", "--context", "prodd").refused()
    assert "did you mean 'prod'?" in run("context", "delete", "prodd").refused()
    assert "must be HOST:PORT" in run("context", "set", "bad", "--namesrv", "here").refused()
    assert "needs --namesrv" in run("context", "set", "bad").refused()
    missing = ("--namesrv", "127.0.0.1:1", "--account", tmp_path / "missing")
    assert "the account cannot be read" in run("context", "set", "bad", *missing).refused()
    file = home / "penstock" / "contexts.json"
    for text in ("{", '{"contexts": {"a": 1}}', '{"surprise": 1}', " " * (1 << 20) + "{}"):
        file.write_text(text)
        assert "the contexts cannot be read" in run("topic", "list").refused()
