"""Apache RocketMQ's Java client 4.9.8 in the fire: its producers and consumers, beside ours, lose nothing either.

The same checkers judge them. Skipped, with the reason, where Maven or etcd is missing.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.effort import chosen_seed
from support.etcd import need_etcd
from support.failover.cluster import Cluster
from support.failover.fire import judge, run
from support.failover.history import Outcome
from support.failover.java_load import sends_of
from support.failover.plan import Blow, Kind, Side, StrikePlan
from support.peers import JAVA, built

TTL_S = 3
LIMITS_S = {kind.value: 45.0 for kind in Kind}
BLOWS = [
    Blow(0.5, (StrikePlan(Kind.KILL, Side.MASTER, 0.5),)),
    Blow(0.5, (StrikePlan(Kind.PAUSE, Side.MASTER, 2.0 * TTL_S),)),
    Blow(0.5, (StrikePlan(Kind.SWITCHOVER, Side.MASTER),)),
    Blow(0.5, (StrikePlan(Kind.LOSE_DISK, Side.MASTER, 0.2), StrikePlan(Kind.KILL, Side.ENGINE_LEADER, 1.0))),
]


@pytest.mark.etcd
@pytest.mark.java
@pytest.mark.timeout(1800)
def test_javas_clients_lose_nothing_either(tmp_path: Path) -> None:
    need_etcd()
    jars, began = built(JAVA / "client"), time.monotonic()
    with Cluster(tmp_path / "set", engines=3, ttl_s=TTL_S) as cluster:
        history = run(cluster, BLOWS, chosen_seed(), java=jars)
    assert judge(history, LIMITS_S, tmp_path) == []
    assert {"CID_java", "CID_java_orderly"} <= {each.group for each in history.consumptions}
    javas = [send for send in history.sends if send.producer.startswith("j")]
    assert len({send.broker for send in javas if send.outcome is Outcome.OK}) > 1, "several masters acknowledged"
    assert all(began < send.began <= send.ended < time.monotonic() for send in javas), "both have one clock"


LINE = {"producer": "j0", "number": 7, "count": 2, "queue": 3, "began": 1_000_000_000, "ended": 2_500_000_000}
IDS = "7F00000100002A9F0000000000000064,7F00000100002A9F00000000000000C8"


def test_an_answer_to_javas_batch_becomes_a_send_for_each_message() -> None:
    first, second = sends_of({**LINE, "status": "SEND_OK", "offset": 40, "ids": IDS})
    assert (first.token, first.queue, first.offset, first.physical) == ("j0-7", "orders-3", 40, 100)
    assert (second.token, second.number, second.offset, second.physical) == ("j0-8", 8, 41, 200)
    assert {first.broker, second.broker} == {"127.0.0.1:10911"}
    assert (first.outcome, first.began, first.ended) == (Outcome.OK, 1.0, 2.5)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"status": "FLUSH_SLAVE_TIMEOUT", "offset": 40, "ids": IDS}, Outcome.STORED),
        ({"refused": "MQBrokerException: CODE: 14"}, Outcome.REFUSED),
        ({"unknown": "RemotingTimeoutException: wait response"}, Outcome.UNKNOWN),
    ],
)
def test_only_send_ok_of_javas_client_is_a_promise(answer: dict[str, object], outcome: Outcome) -> None:
    assert [send.outcome for send in sends_of({**LINE, **answer})] == [outcome, outcome]
