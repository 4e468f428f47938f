"""What a keeper needs of every engine, on the model, on real etcd and on real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.etcd import running_etcd
from support.loopback import SOON_S
from support.model_dcs import ModelEngine, ModelSession
from support.zookeeper import running_zookeeper

from penstock.broker.failover.consensus_engine import (
    LEADER,
    STATE,
    ChangeKind,
    Committed,
    EngineAway,
    Leader,
    Mastership,
    Member,
    NotExpected,
    Session,
    State,
    Transaction,
    boot_time,
    history_key,
    member_key,
)
from penstock.broker.failover.etcd import EtcdNodes, EtcdSession

_TTL_S = 2


class Engine:
    """Opens sessions at one engine, each test under a prefix of its own."""

    def __init__(self, open_session: Callable[[], Session], expire: Callable[[], None]) -> None:
        self.open = open_session
        self.expire = expire


@pytest.fixture(scope="module")
def etcd_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNodes]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as nodes:
        yield EtcdNodes(addresses=[each.address for each in nodes])


@pytest.fixture(scope="module")
def zookeeper_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as (node,):
        yield node.address


_REAL = [pytest.param("etcd", marks=pytest.mark.etcd), pytest.param("zookeeper", marks=pytest.mark.zookeeper)]


@contextmanager
def real_sessions(request: pytest.FixtureRequest, name: str, prefix: str) -> Iterator[Callable[[], Session]]:
    """Opens sessions at a real engine; they end with the block."""
    opened: list[Session] = []
    place = request.getfixturevalue("etcd_nodes" if name == "etcd" else "zookeeper_address")

    def open_session() -> Session:
        if name == "etcd":
            opened.append(EtcdSession(place, prefix, _TTL_S))
        else:
            from penstock.broker.failover.zookeeper import ZookeeperNodes, ZookeeperSession

            opened.append(ZookeeperSession(ZookeeperNodes(addresses=[place]), prefix, _TTL_S))
        return opened[-1]

    yield open_session
    for session in opened:
        session.release()
        session.close()


@pytest.fixture(params=["model", *_REAL])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "model":
        model = ModelEngine()
        yield Engine(lambda: ModelSession(model, _TTL_S), lambda: model.pass_time(_TTL_S + 1))
        return
    with real_sessions(request, request.param, f"/penstock/{tmp_path.name}") as open_session:

        def let_expire() -> None:
            other, until = open_session(), time.monotonic() + 60
            while (view := other.view()).leader is not None or view.members:
                assert time.monotonic() < until
                assert other.renew()
                time.sleep(0.1)

        yield Engine(open_session, let_expire)


def _state(epoch: int = 1) -> bytes:
    return State(epoch=epoch, master=1, sync=(1,), ids={"a": 1}, next_id=2).to_bytes()


def _leader(epoch: int = 1) -> bytes:
    return Leader(id=1, epoch=epoch, incarnation="a.1").to_bytes()


def _found(**changes: object) -> Transaction:
    values = {
        "what": ChangeKind.BOOTSTRAP,
        "expected": {STATE: 0, LEADER: 0},
        "puts": {STATE: _state(), LEADER: _leader()},
        "leased": frozenset({LEADER}),
        **changes,
    }
    return Transaction(**values)  # type: ignore[arg-type]


def test_an_empty_engine_has_no_state(engine: Engine) -> None:
    view = engine.open().view()
    assert (view.state, view.leader, view.request, view.members) == (None, None, None, {})


def test_a_transaction_is_seen_by_all_at_once(engine: Engine) -> None:
    mine, other = engine.open(), engine.open()
    outcome = mine.commit(_found())
    assert isinstance(outcome, Committed)
    assert outcome.view == mine.view()
    assert outcome.view.leader_is_mine
    seen = other.view()
    assert seen.state == outcome.view.state
    assert seen.leader is not None
    assert not seen.leader_is_mine


def test_of_two_transactions_on_one_version_one_is_refused_and_changes_nothing(engine: Engine) -> None:
    first, second = engine.open(), engine.open()
    assert isinstance(first.commit(_found()), Committed)
    outcome = second.commit(_found(puts={STATE: _state(7), LEADER: _leader(7), history_key(7): b"{}"}))
    assert isinstance(outcome, NotExpected)
    assert outcome.view.state is not None
    assert outcome.view.state.epoch == 1
    assert second.history(10) == []


def test_a_change_gives_the_key_another_version_and_the_view_a_higher_revision(engine: Engine) -> None:
    session = engine.open()
    session.commit(_found())
    before = session.view()
    change = Transaction(what=ChangeKind.PAUSE, expected={STATE: before.state_version}, puts={STATE: _state()})
    assert isinstance(session.commit(change), Committed)
    after = session.view()
    assert after.state_version != before.state_version
    assert after.revision > before.revision
    assert after.leader_version == before.leader_version
    assert isinstance(session.commit(change), NotExpected)


def test_a_key_that_was_deleted_and_written_again_has_another_version(engine: Engine) -> None:
    session = engine.open()
    session.commit(_found())
    before = session.view().leader_version
    session.commit(Transaction(what=ChangeKind.RESIGN, deletes=frozenset({LEADER})))
    assert session.view().leader is None
    session.commit(Transaction(what=ChangeKind.ELECT, puts={LEADER: _leader()}, leased=frozenset({LEADER})))
    assert session.view().leader_version not in (0, before)


def test_only_the_session_with_the_leader_key_commits_what_is_only_for_the_leader(engine: Engine) -> None:
    mine, other = engine.open(), engine.open()
    mine.commit(_found())
    change = Transaction(what=ChangeKind.SHRINK, mine=True, puts={STATE: _state(2)})
    assert isinstance(other.commit(change), NotExpected)
    assert isinstance(mine.commit(change), Committed)


def test_keys_on_a_lease_vanish_when_it_is_released_and_the_others_stay(engine: Engine) -> None:
    mine, other = engine.open(), engine.open()
    key = member_key(1)
    mine.commit(_found())
    member = Member(replica="a", incarnation="a.1").to_bytes()
    mine.commit(Transaction(what=ChangeKind.PUBLISH, puts={key: member}, leased=frozenset({key})))
    view = mine.view()
    assert view.own_members == {1}
    assert list(view.members) == [1]
    mine.release()
    view = other.view()
    assert view.state is not None
    assert view.leader is None
    assert view.members == {}


def _has_ended(session: Session) -> bool:
    """Whether a renewal says so; on a busy machine an engine may need several to answer."""
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        with suppress(EngineAway):
            return not session.renew()
    return False


def test_a_lease_that_is_not_renewed_ends_and_takes_its_keys_with_it(engine: Engine) -> None:
    mine = engine.open()
    mine.commit(_found())
    engine.expire()
    other = engine.open()
    assert other.view().leader is None
    assert _has_ended(mine)
    assert isinstance(mine.commit(_found(expected={}, puts={LEADER: _leader(2)})), NotExpected)
    assert other.view().leader is None


def test_a_renewal_moves_the_deadline(engine: Engine) -> None:
    session = engine.open()
    before = session.deadline
    assert session.ttl_s == _TTL_S
    assert session.renew()
    assert session.deadline >= before


def test_the_history_is_read_newest_first_and_is_no_part_of_a_view(engine: Engine) -> None:
    session = engine.open()
    for epoch in (1, 2, 11):
        entry = Mastership(epoch=epoch, master=1)
        session.commit(Transaction(what=ChangeKind.ELECT, puts={history_key(epoch): entry.to_bytes()}))
    assert [each.epoch for each in session.history(2)] == [11, 2]
    assert session.view().state is None


def test_the_oldest_entries_of_the_history_are_removed_with_the_newest_write(engine: Engine) -> None:
    session = engine.open()
    for epoch in (1, 2, 3):
        written = {history_key(epoch): Mastership(epoch=epoch, master=1).to_bytes()}
        gone = frozenset({history_key(epoch - 2)} if epoch > 1 else ())
        assert isinstance(session.commit(Transaction(what=ChangeKind.ELECT, puts=written, deletes=gone)), Committed)
    assert [each.epoch for each in session.history(10)] == [3, 2]


def test_wait_ends_when_it_is_woken(engine: Engine) -> None:
    session = engine.open()
    session.wake()
    session.wait(0.01)
    session.wake()
    session.wait(60.0)


@pytest.mark.parametrize("name", _REAL)
def test_a_change_by_another_session_ends_a_wait(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    with real_sessions(request, name, f"/watched/{tmp_path.name}") as open_session:
        mine, other = open_session(), open_session()
        for _ in range(3):
            mine.wait(0.05)  # sets the watch
        other.commit(_found())
        began = boot_time()
        mine.wait(60.0)
        assert boot_time() - began < 60.0
        assert mine.view().state is not None
