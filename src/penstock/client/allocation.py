"""Who of a group consumes which queues. Pure.

Every member computes the same from the same lists, so they need not talk to each other: Java's AllocateMessageQueue-
Averagely, to the queue, so that members in both languages can share a group.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.protocol.bodies.queues import MessageQueue


def allocate_averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """The queues of one client: a run of neighbours, the first clients one more if it does not work out evenly."""
    in_order, members = sorted(queues), sorted(client_ids)
    if client_id not in members:
        return []
    place = members.index(client_id)
    each, over = divmod(len(in_order), len(members))
    begin = place * each + min(place, over)
    return in_order[begin : begin + each + (place < over)]
