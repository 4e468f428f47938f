"""The verbs that talk to a cluster, where access is controlled and connections are encrypted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from client.test_access import ACCOUNTS
from support.loopback import make_authority, make_certificate

from penstock.testing import broker

if TYPE_CHECKING:
    from cli.conftest import Run


def test_an_account_and_trusted_certificates_are_read_from_files(run: Run, tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    own = make_certificate(tmp_path, "broker", authority)
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": own.certificate,
        "tls.server.keyPath": own.key,
        "aclEnable": True,
        "aclFile": tmp_path / "plain_acl.yml",
    }
    operator, seller = tmp_path / "tools.yml", tmp_path / "seller.conf"
    operator.write_text("accessKey: operator\nsecretKey: 'operator-secret'\n")
    seller.write_text("accessKey=seller_1\nsecretKey=seller-secret\n")
    trust = ("--trust", authority.certificate)
    with broker(settings=settings) as b:
        create = ("topic", "create", "-t", "mine", "-n", b.namesrv)
        assert run(*create, *trust, "--account", operator).done().out.startswith("created topic mine (8 queues)")
        assert "is for administrators" in run(*create, *trust, "--account", seller).refused()
        listing = ("topic", "list", "-n", b.namesrv, *trust, "--account")
        assert run(*listing, operator).done().out.splitlines()[1].startswith("mine")
        assert run(*listing, seller, "--names").done().out == "mine\n"
        assert "is for administrators" in run(*listing, seller).refused()
        assert "SYSTEM_ERROR from" in run(*create, *trust).refused()
        assert "Cannot reach name server" in run(*create, "--account", operator).refused()


def test_an_account_that_cannot_be_read_is_one_sentence(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    assert "needs the lines accessKey" in run("topic", "list", "--account", empty).refused()
    assert "the account cannot be read" in run("topic", "list", "--account", tmp_path / "nothing").refused()
    assert "cannot be read" in run("topic", "list", "--trust", tmp_path / "nothing").refused()
