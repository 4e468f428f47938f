"""The demo's steps. Each step checks its own result and returns a summary of one sentence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final, NamedTuple

from penstock.client.sync import Admin
from penstock.demo.shop import GROUPS, TOPICS, Scene, Shop, StepSkipped, check, consumer
from penstock.human_units import format_size
from penstock.store.audit import AuditReport, audit
from penstock.store.readonly.store_folder import StoreFolder, quiet_log

_ORDER: Final = 7
"""The number of the order that a step finds by its key."""
_PAGE: Final = 512


class Step(NamedTuple):
    """One step. `run` returns the step's summary, or raises StepFailed, StepSkipped or another error."""

    name: str
    title: str
    run: Callable[[Scene], str]


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
        f"{group} consumes {' and '.join(f'{topic} ({expression})' for topic, expression in topics.items())}"
        for group, topics in GROUPS.items()
    )


def produce(scene: Scene) -> str:
    scene.shop = Shop(scene.broker.namesrv, scene.ledger)
    scene.opened.callback(scene.shop.close)
    started = scene.ledger.now
    scene.sales = scene.shop.sell(0, scene.orders)
    half = scene.orders  # half of the messages, because each order is two messages

    def half_done() -> bool:
        scene.progress("messages acknowledged", scene.ledger.count, 2 * scene.orders)
        return scene.ledger.count >= half

    check(scene.ledger.wait(half_done), "the broker acknowledged too few messages in a minute")
    rate = scene.ledger.count / (scene.ledger.now - started)
    scene.figures.update(acknowledged=scene.ledger.count, per_second=round(rate))
    return f"{scene.ledger.count:,} messages acknowledged so far, {rate:,.0f} per second, and the shop keeps sending"


def kill(scene: Scene) -> str:
    pid = scene.broker.pid
    scene.killed_at = scene.ledger.now
    scene.broker.kill()
    check((scene.store / "abort").exists(), "the store was closed cleanly")
    missed = scene.ledger.unanswered
    check(scene.ledger.wait(lambda: scene.ledger.unanswered > missed), "no send failed after the kill")
    scene.figures.update(process=pid, acknowledged=scene.ledger.count)
    return f"process {pid} was killed; {scene.ledger.count:,} messages were acknowledged"


def recover(scene: Scene) -> str:
    before, started = scene.ledger.count, scene.ledger.now
    scene.broker.start()
    duration = scene.ledger.now - started
    scene.outages.append((scene.killed_at, scene.ledger.now))
    check(scene.ledger.wait(lambda: scene.ledger.count > before), "the broker acknowledges no message after its crash")

    def all_sold() -> bool:
        scene.progress("messages acknowledged", scene.ledger.count, 2 * scene.orders)
        return scene.ledger.count >= 2 * scene.orders

    check(scene.ledger.wait(all_sold), "the remaining orders were not acknowledged in a minute")
    for sale in scene.sales:
        sale.result()
    scene.figures.update(start_seconds=round(duration, 3), acknowledged=scene.ledger.count)
    return (
        f"recovered and serving after {duration:.1f} s; all {scene.ledger.count:,} messages are acknowledged, "
        f"{scene.ledger.unanswered} sends failed meanwhile and were retried"
    )


def prove(scene: Scene) -> str:
    ledger = scene.ledger
    for group in GROUPS:
        due = ledger.due(group)

        def all_received(group: str = group, due: set[str] = due) -> bool:
            scene.progress(f"received by {group}", len(ledger.received[group]), len(due))
            return ledger.received[group].keys() >= due

        complete = ledger.wait(all_received)
        missing = len(due - ledger.received[group].keys())
        check(complete, f"group {group} did not receive {missing} of {len(due)} acknowledged messages")
    stored = {topic: stored_keys(scene, topic) for topic in TOPICS}
    for topic, acked in ledger.acked.items():
        lost = acked.keys() - stored[topic].keys()
        check(not lost, f"{len(lost)} acknowledged messages of {topic} are lost")
    again = {group: sum(keys.values()) - len(keys) for group, keys in ledger.received.items()}
    more = sum(map(len, stored.values())) - ledger.count
    scene.figures.update(acknowledged=ledger.count, lost=0, unacknowledged_but_stored=more, seen_again=again)
    return (
        f"all {ledger.count:,} acknowledged messages are in the store, by unique key, and both groups received theirs "
        f"({sum(again.values())} duplicates); {more} more are stored without an ack"
    )


def stored_keys(scene: Scene, topic: str) -> Counter[str]:
    """Returns how often the store's files contain each unique key of a topic."""
    keys: Counter[str] = Counter()
    store, _ = StoreFolder.find(scene.store).view()
    with quiet_log(), store:
        for queue in store.queues:
            offset = 0
            while queue.topic == topic:
                page = store.get(topic, queue.queue_id, offset, _PAGE)
                keys.update(message.unique_key or "" for message in page.messages)
                if page.next_begin_offset <= offset:
                    break
                offset = page.next_begin_offset
    return keys


def query(scene: Scene) -> str:
    key = f"order_{_ORDER}"
    with Admin(scene.broker.namesrv) as admin:
        messages = [message for topic in TOPICS for message in admin.messages.by_key(topic, key)]
    check({message.topic for message in messages} == TOPICS.keys(), f"order and payment of {key} were not found")
    check(all(key in message.keys for message in messages), "a message with another key was found")
    scene.figures.update(key=key, found=len(messages))
    return f"{key}: " + "; ".join(f"{message.topic} {message.body.decode()}" for message in messages)


def stop(scene: Scene) -> str:
    for client in (*scene.consumers, scene.shop):
        if client is not None:
            client.close()
    status = scene.broker.stop()
    check(status == 0, f"the broker ended with status {status}")
    check(not (scene.store / "abort").exists(), "the store was not closed cleanly")
    return "closed cleanly; the next start has nothing to recover"


def verify(scene: Scene) -> str:
    return audit_summary(scene, audit(scene.store, workers=min(os.cpu_count() or 1, 4)))


def audit_summary(scene: Scene, report: AuditReport) -> str:
    """Checks an audit report and returns the step's summary. Raises StepFailed."""
    figures = report.figures
    scene.figures.update(errors=len(report.errors), notes=len(report.notes), records=figures.records)
    if report.errors:
        first = report.errors[0]
        check(False, f"{len(report.errors)} errors, the first: {first.kind} in {first.path}: {first.what}")
    check(figures.records >= scene.ledger.count, "fewer records than acknowledged messages")
    return (
        f"no errors in {figures.records:,} records, {figures.units:,} units of {figures.queues} queues and "
        f"{figures.keys:,} keys"
    )


def usage(scene: Scene) -> str:
    if find_spec("pyarrow") is None:
        raise StepSkipped("usage needs the package pyarrow: pip install 'penstock[arrow]'")
    from penstock.pipeline.jobs.job_input import JobInput
    from penstock.pipeline.jobs.usage import usage_here

    scene.usage = usage_here(JobInput(stores=(str(scene.store),)))
    counted = {key.topic: (messages, size) for key, messages, size in scene.usage.rows("topic")}
    for topic, acked in scene.ledger.acked.items():
        check(counted.get(topic, (0, 0))[0] >= len(acked), f"usage counted too few messages of {topic}")
    scene.figures.update({topic: {"messages": count, "bytes": size} for topic, (count, size) in counted.items()})
    return "; ".join(f"{topic}: {count:,} messages, {format_size(size)}" for topic, (count, size) in counted.items())


FIRST: Final = (
    Step("serve", "Start a broker on a new store", serve),
    Step("consume", "Start two consumer groups", consume),
    Step("produce", "Send orders and payments through RocketMQ's protocol", produce),
    Step("kill", "Kill the broker under load (SIGKILL)", kill),
    Step("recover", "Restart it on the same store", recover),
    Step("proof", "Verify that no acknowledged message was lost", prove),
    Step("query", "Find an order and its payment by key", query),
)
STOP: Final = Step("stop", "Stop the broker cleanly", stop)
LAST: Final = (
    Step("verify", "Check every record, unit and key of the store", verify),
    Step("usage", "Measure disk usage", usage),
)
