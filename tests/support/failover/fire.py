"""One run: a cluster under load, blow after blow, and the history of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from support.failover.checkers import Finding, check, outages
from support.failover.cluster import Cluster
from support.failover.history import History
from support.failover.java_load import JavaConsumers, JavaProducers
from support.failover.load import Acknowledged, Consumers, Producers, PullGroup, PushGroup
from support.failover.plan import Blow
from support.failover.strikes import Nemesis

_BETWEEN = 30
"""Messages that must be acknowledged between two blows."""
_ACKNOWLEDGED_WITHIN_S = 60.0
_CONSUMED_WITHIN_S = 60.0


def run(
    cluster: Cluster, plan: Sequence[Blow], seed: int, *, pause_s: float = 0.005, java: Sequence[Path] = ()
) -> History:
    """Carries out a plan on a cluster under load. Ends its brokers, and returns what was seen.

    `java` is the class path of RocketMQ's Java client, if its producers and consumers take part.

    Raises AssertionError if the cluster does not acknowledge messages any more, or its logs do not become equal.
    """
    nemesis = Nemesis(cluster, seed)
    producers: list[Producers | JavaProducers] = [Producers(cluster.namesrv, cluster.queues, seed, pause_s=pause_s)]
    ours = (PullGroup(cluster.namesrv, cluster.queues), PushGroup(cluster.namesrv))
    groups: list[Consumers] = [*ours]
    consumers: list[contextlib.AbstractContextManager[object]] = [*ours]
    if java:
        logs = cluster.folder / "java"
        producers.append(JavaProducers(java, logs, cluster.namesrv, cluster.queues, seed))
        javas = JavaConsumers(java, logs, cluster.namesrv)
        consumers.append(javas)
        groups += javas.groups
    with contextlib.ExitStack() as stack:
        with contextlib.ExitStack() as sending:
            for each in producers:
                sending.enter_context(each)
            assert _send_more(producers), f"no SEND_OK at all\n{cluster.said()}"
            for consumer in consumers:  # now there is a topic
                stack.enter_context(consumer)
            cluster.wait_until_copied()
            for number, blow in enumerate(plan):
                nemesis.strike(blow)
                if not _send_more(producers):
                    names = ", ".join(strike.name for strike in blow.strikes)
                    raise AssertionError(f"no SEND_OK after blow {number}, {names}\n{cluster.said()}")
        assert cluster.settle(), f"the logs do not become equal\n{cluster.said()}"
        sends = [send for each in producers for send in each.sends]
        tokens = [send.token for send in sends if send.outcome == "SEND_OK"]
        for group in groups:
            group.wait_for(tokens, _CONSUMED_WITHIN_S)
        cluster.wait_until_dispatched()
    states, leaders = ((), ()) if cluster.engine is None else cluster.engine.past()
    return History(
        sends=tuple(sends),
        consumptions=tuple(each for group in groups for each in group.consumptions),
        commits=tuple(each for group in groups for each in group.commits),
        groups=tuple(group.group for group in groups),
        ordered=tuple(group.group for group in groups if group.is_ordered),
        replicas=tuple(cluster.evidence()),
        states=states,
        leaders=leaders,
        strikes=tuple(nemesis.strikes),
        wiped=tuple(nemesis.wiped),
    )


def _send_more(producers: Iterable[Acknowledged]) -> bool:
    """Returns whether messages of each kind of producers are acknowledged in time."""
    return all(each.wait_for_more(_BETWEEN, _ACKNOWLEDGED_WITHIN_S) for each in producers)


def judge(history: History, limits_s: dict[str, float], folder: Path) -> list[Finding]:
    """Applies all rules, and prints what happened.

    A history that breaks a rule is saved in `folder`, or in the folder that PENSTOCK_EVIDENCE names.
    """
    acknowledged = sum(1 for _ in history.acknowledged)
    epochs = len({leader.epoch for leader in history.leaders})
    print(f"{len(history.sends)} sends, {acknowledged} acknowledged, {epochs} epochs, {len(history.strikes)} strikes")
    for kind, target, seconds in outages(history):
        print(f"  {kind} of {target}: {'no end' if seconds is None else f'{seconds:.2f} s'}")
    findings = check(history, limits_s)
    if findings:
        place = Path(os.environ.get("PENSTOCK_EVIDENCE") or folder) / "history.json"
        history.save(place)
        print(f"the history is in {place}")
    return findings
