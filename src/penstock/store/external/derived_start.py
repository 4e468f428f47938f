"""How the job begins: queues and index as they were when the last job told how far it had come.

What was told (`dispatch.done`) is believed if the machine has not failed since; else what was synced (the note). Units
and items behind that may be half a batch: they go, and are built again from the log. The store may be serving what lies
before it at this very moment, and nothing there is touched unless it is wrong.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from penstock.store.damage import read_damage
from penstock.store.dispatch_state import read_state
from penstock.store.engine import Engine
from penstock.store.external.terms import built_position
from penstock.store.files import Files
from penstock.store.quarantine import Quarantine
from penstock.store.records import Records
from penstock.store.recovery.dispatching import Dispatching
from penstock.store.recovery.index_part import IndexPart
from penstock.store.recovery.log_part import LogPart
from penstock.store.recovery.queue_part import QueuePart
from penstock.store.recovery.report import RecoveryReport

log = logging.getLogger("penstock.store")


def start_at(engine: Engine, disk: Files) -> None:
    """Takes queues and index back to what counts, and completes them up to there. `disk` shows the log.

    Raises BadStore, StoreFailed or OSError, and can be done again.
    """
    files, layout, settings, index = engine.io, engine.layout, engine.settings, engine.index
    commit_log, dispatcher = engine.log, engine.dispatcher
    state, position = read_state(files, layout.dispatched), built_position(files, layout)
    records = Records(commit_log, verify_crc=settings.verify_crc_on_read)
    part = LogPart(replace(engine, io=disk), records, live=True)
    part.load()
    damage = read_damage(files, layout.damaged)
    part.take_as_known(position, damage)
    report = RecoveryReport(clean_exit=False)
    quarantine = Quarantine(files, layout.quarantine, engine.clock, max_bytes=settings.quarantine_max_bytes)
    queue_part = QueuePart(engine, live=False)
    index_part = None if index is None else IndexPart(files, index, records, live=False, owned=False)
    sizes = None if state is None else state.sizes
    queue_part.load(sizes)
    if index_part is not None:
        index_part.load(sizes)
    queue_part.look(part, False)
    if index_part is not None:
        index_part.look(part, False)
    quarantine.make_room(queue_part.room_needed + (0 if index_part is None else index_part.room_needed))
    part.bring_in_order(quarantine, report)
    queue_part.bring_in_order(quarantine, report, False)
    if index_part is not None:
        noted_end = None if state is None else state.index_end
        index_part.bring_in_order(part, quarantine, report, False, noted_end)
    if commit_log.queue.files:
        dispatching = Dispatching(engine, state, state_is_garbage=False, external=True)
        dispatching.run(part, index_part, queue_part.behind, report, lambda told: None)
    dispatcher.move_to(max(dispatcher.position, position))
    dispatcher.set_damage(damage)
    for note in report.notes:
        log.info("%s", note)
