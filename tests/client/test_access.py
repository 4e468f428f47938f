"""Clients of a broker with access control."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.clients import Gathered

from penstock.client import Admin, ClientConfig, Credentials, Message, Producer, PushConsumer
from penstock.errors import PenstockError, Refused
from penstock.testing import broker

if TYPE_CHECKING:
    from client.conftest import Run

ACCOUNTS = """
accounts:
  - accessKey: seller_1
    secretKey: seller-secret
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=PUB]
  - accessKey: packer_1
    secretKey: packer-secret
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=SUB]
    groupPerms: [CID=SUB]
  - accessKey: operator
    secretKey: operator-secret
    admin: true
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: PUB|SUB
"""


def test_each_account_may_do_what_it_is_granted_and_nothing_else(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)

    async def main(namesrv: str) -> None:
        def with_account(name: str, secret: str) -> ClientConfig:
            return ClientConfig(namesrv, credentials=Credentials(name, secret))

        seller = with_account("seller_1", "seller-secret")
        packer = with_account("packer_1", "packer-secret")
        gathered = Gathered()
        async with (
            PushConsumer("CID", gathered, packer, subscriptions={"orders": "*"}),
            Producer("PID", seller) as producer,
        ):
            await producer.send(Message("orders", b"x"))
            await gathered.until_count(1)
            with pytest.raises(PenstockError):
                await producer.send(Message("others", b"x"))
        for wrong in (namesrv, with_account("seller_1", "guessed-it"), packer):
            async with Producer("PID", wrong) as producer:
                with pytest.raises(Refused):
                    await producer.send(Message("orders", b"x"))
        async with Admin(seller) as admin:
            with pytest.raises(Refused):
                await admin.topics.create("mine")
        async with Admin(with_account("operator", "operator-secret")) as admin:
            await admin.topics.create("mine", queues=2)
            assert "mine" in await admin.topics.names()

    with broker(["orders"], settings={"aclEnable": True, "aclFile": tmp_path / "plain_acl.yml"}) as b:
        run(main(b.namesrv))
