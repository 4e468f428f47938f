"""The steps of the demo: each does one thing, checks what came of it, and says it in a sentence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final, NamedTuple

from penstock.client.sync import Admin
from penstock.demo.shop import GROUPS, TOPICS, Scene, Shop, StepSkipped, check, consumer
from penstock.store.audit import AuditReport, audit
from penstock.store.readonly.store_folder import StoreFolder, quiet_log
from penstock.units import format_size

_ASKED_FOR: Final = 7
"""The number of the order that is looked for by its key."""
_PAGE: Final = 512


class Step(NamedTuple):
    """One step: `act` returns its sentence, and raises StepFailed, StepSkipped or an error."""

    name: str
    title: str
    act: Callable[[Scene], str]


def serve(scene: Scene) -> str:
    scene.broker.start()
    scene.opened.callback(scene.broker.kill)
    scene.figures.update(broker=scene.broker.address, namesrv=scene.broker.namesrv)
    return f"process {scene.broker.pid} listens at {scene.broker.address}, its name server at {scene.broker.namesrv}"


def consume(scene: Scene) -> str:
    with Admin(scene.broker.namesrv) as admin:
        for topic, queues in TOPICS.items():
            admin.topics.create(topic, queues=queues)
    for group in GROUPS:
        scene.consumers.append(consumer(group, scene.broker.namesrv, scene.ledger))
        scene.opened.callback(scene.consumers[-1].close)
    return "; ".join(
        f"{group} takes {' and '.join(f'{topic} ({expression})' for topic, expression in asked.items())}"
        for group, asked in GROUPS.items()
    )


def produce(scene: Scene) -> str:
    scene.shop = Shop(scene.broker.namesrv, scene.ledger)
    scene.opened.callback(scene.shop.close)
    begun = scene.ledger.now
    scene.sales = scene.shop.sell(0, scene.orders)
    half = scene.orders  # two messages an order

    def half_done() -> bool:
        scene.tell("messages acknowledged", scene.ledger.count, 2 * scene.orders)
        return scene.ledger.count >= half

    check(scene.ledger.wait(half_done), "the broker acknowledged too little in a minute")
    rate = scene.ledger.count / (scene.ledger.now - begun)
    scene.figures.update(acknowledged=scene.ledger.count, per_second=round(rate))
    return f"{scene.ledger.count:,} messages acknowledged so far, {rate:,.0f} a second, and the shop goes on"


def kill(scene: Scene) -> str:
    pid = scene.broker.pid
    scene.killed_at = scene.ledger.now
    scene.broker.kill()
    check((scene.store / "abort").exists(), "the store looks as if it had been closed")
    missed = scene.ledger.unanswered
    check(scene.ledger.wait(lambda: scene.ledger.unanswered > missed), "nobody noticed that the broker is gone")
    scene.figures.update(process=pid, acknowledged=scene.ledger.count)
    return f"process {pid} is gone, without a chance to tidy up; {scene.ledger.count:,} messages were acknowledged"


def recover(scene: Scene) -> str:
    before, begun = scene.ledger.count, scene.ledger.now
    scene.broker.start()
    started = scene.ledger.now - begun
    scene.away.append((scene.killed_at, scene.ledger.now))
    check(scene.ledger.wait(lambda: scene.ledger.count > before), "the broker takes no message after its crash")

    def all_sold() -> bool:
        scene.tell("messages acknowledged", scene.ledger.count, 2 * scene.orders)
        return scene.ledger.count >= 2 * scene.orders

    check(scene.ledger.wait(all_sold), "the shop could not sell the rest in a minute")
    for sale in scene.sales:
        sale.result()
    scene.figures.update(start_seconds=round(started, 3), acknowledged=scene.ledger.count)
    return (
        f"it recovered and served again after {started:.1f} s; all {scene.ledger.count:,} messages are acknowledged, "
        f"{scene.ledger.unanswered} sends failed meanwhile and were tried again"
    )


def prove(scene: Scene) -> str:
    ledger = scene.ledger
    for group in GROUPS:
        due = ledger.due(group)

        def all_seen(group: str = group, due: set[str] = due) -> bool:
            scene.tell(f"seen by {group}", len(ledger.seen[group]), len(due))
            return ledger.seen[group].keys() >= due

        lacks = "group {} was not given {} of {} acknowledged messages"
        check(ledger.wait(all_seen), lacks.format(group, len(due - ledger.seen[group].keys()), len(due)))
    stored = {topic: stored_keys(scene, topic) for topic in TOPICS}
    for topic, acked in ledger.acked.items():
        lost = acked.keys() - stored[topic].keys()
        check(not lost, f"{len(lost)} acknowledged messages of {topic} are lost")
    again = {group: sum(seen.values()) - len(seen) for group, seen in ledger.seen.items()}
    more = sum(map(len, stored.values())) - ledger.count
    scene.figures.update(acknowledged=ledger.count, lost=0, unacknowledged_but_stored=more, seen_again=again)
    return (
        f"all {ledger.count:,} acknowledged messages are in the store, by their unique keys, and both groups were "
        f"given theirs ({sum(again.values())} came again); {more} are stored whose sender had no answer"
    )


def stored_keys(scene: Scene, topic: str) -> Counter[str]:
    """The unique keys of a topic's messages in the store's files, and how often each is there."""
    found: Counter[str] = Counter()
    store, _ = StoreFolder.find(scene.store).view()
    with quiet_log(), store:
        for queue in store.queues:
            offset = 0
            while queue.topic == topic:
                page = store.get(topic, queue.queue_id, offset, _PAGE)
                found.update(message.unique_key or "" for message in page.messages)
                if page.next_begin_offset <= offset:
                    break
                offset = page.next_begin_offset
    return found


def query(scene: Scene) -> str:
    key = f"order_{_ASKED_FOR}"
    with Admin(scene.broker.namesrv) as admin:
        found = [message for topic in TOPICS for message in admin.messages.by_key(topic, key)]
    check({message.topic for message in found} == TOPICS.keys(), f"order and payment of {key} were not found")
    check(all(key in message.keys for message in found), "a message with another key was found")
    scene.figures.update(key=key, found=len(found))
    return f"{key}: " + "; ".join(f"{message.topic} {message.body.decode()}" for message in found)


def stop(scene: Scene) -> str:
    for client in (*scene.consumers, scene.shop):
        if client is not None:
            client.close()
    status = scene.broker.stop()
    check(status == 0, f"the broker ended with status {status}")
    check(not (scene.store / "abort").exists(), "the store was not closed cleanly")
    return "everything is on disk, and the next start has nothing to recover"


def verify(scene: Scene) -> str:
    return judged(scene, audit(scene.store, workers=min(os.cpu_count() or 1, 4)))


def judged(scene: Scene, report: AuditReport) -> str:
    """What an audit says, in a sentence."""
    figures = report.figures
    scene.figures.update(errors=len(report.errors), notes=len(report.notes), records=figures.records)
    if report.errors:
        first = report.errors[0]
        check(False, f"{len(report.errors)} errors, the first: {first.kind} in {first.path}: {first.what}")
    check(figures.records >= scene.ledger.count, "there are fewer records than acknowledged messages")
    return (
        f"no error in {figures.records:,} records, {figures.units:,} units of {figures.queues} queues and "
        f"{figures.keys:,} keys"
    )


def usage(scene: Scene) -> str:
    if find_spec("pyarrow") is None:
        raise StepSkipped("counting needs the package pyarrow: pip install 'penstock[arrow]'")
    from penstock.pipeline.jobs.common import Where
    from penstock.pipeline.jobs.usage import usage_here

    found = scene.usage = usage_here(Where(stores=(str(scene.store),)))
    counted = {key.topic: (messages, size) for key, messages, size in found.rows("topic")}
    for topic, acked in scene.ledger.acked.items():
        check(counted.get(topic, (0, 0))[0] >= len(acked), f"{topic} was counted short")
    scene.figures.update({topic: {"messages": count, "bytes": size} for topic, (count, size) in counted.items()})
    return "; ".join(f"{topic}: {count:,} messages, {format_size(size)}" for topic, (count, size) in counted.items())


FIRST: Final = (
    Step("serve", "Start a broker on a fresh store", serve),
    Step("consume", "Two groups begin to consume", consume),
    Step("produce", "A shop sells orders and takes payments, through RocketMQ's protocol", produce),
    Step("kill", "Kill the broker hard while the shop sells (SIGKILL)", kill),
    Step("recover", "Start it again on the same store", recover),
    Step("proof", "Prove that nothing acknowledged was lost", prove),
    Step("query", "Find an order and its payment by key", query),
)
STOP: Final = Step("stop", "Stop the broker cleanly", stop)
LAST: Final = (
    Step("verify", "Check every record, unit and key of the store", verify),
    Step("usage", "Count who fills the disk", usage),
)
