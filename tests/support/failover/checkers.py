"""The rules that the history of a cluster with failover must keep. Pure: a history in, sentences out.

    C1   loss          every acknowledged message is in the final log once, where the answer said
    C2   invention     every message of a log was sent, and none of those that were refused is there
    C3   order         the queue offsets of a producer's acknowledged messages rise as it sent them
    C4   one meaning   an offset of a queue never shows two messages: in acknowledgements, to consumers, in logs
    C5   consumption   every group received every acknowledged message where the answer said; commits skip none
    C6   bytes         the logs of all replicas are equal, and their queues and index are sound
    C7   fencing       an epoch has one writer, which acknowledges only in it, and not after a later epoch has
    C8   tails         no acknowledged message is in a tail that was cut off; what was cut is kept
    C9   engine        each change of master and sync set is one that the design allows
    C10  outage        messages are acknowledged again soon enough after each strike

They are for `acks=all`. An answer other than SEND_OK promises nothing, so its offset may be given to another message
later: C1, C3 and C4 leave it out.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

import msgspec

from support.failover.history import History, Outcome, Replica, Send, State

_SHOWN = 3


class Finding(msgspec.Struct, frozen=True):
    """A rule that a history breaks."""

    rule: str
    what: str


def check(history: History, limits_s: Mapping[str, float] | None = None) -> list[Finding]:
    """Applies all rules. `limits_s` are the longest outages by kind of strike; kinds without one are not judged."""
    found = [Finding(rule, what) for rule, checker in CHECKERS.items() for what in checker(history)]
    return found + [Finding("C10", what) for what in too_long_outages(history, limits_s or {})]


def _several(what: str, examples: Iterable[object]) -> Iterator[str]:
    """Yields one sentence for all examples, if there are any."""
    shown = [str(each) for each in examples]
    if shown:
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        yield f"{what}: {'; '.join(shown[:_SHOWN])}{more}"


def _named(send: Send) -> str:
    return f"{send.token} at {send.queue}:{send.offset}, answered by {send.broker}"


# -- messages --------------------------------------------------------------------------------------------------------


def lost(history: History) -> Iterator[str]:
    """C1."""
    places: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for record in history.final.records:
        if record.token:
            places[record.token].append((record.queue, record.offset, record.physical))
    acknowledged = list(history.acknowledged)
    yield from _several("lost", (_named(send) for send in acknowledged if send.token not in places))
    yield from _several(
        "acknowledged once and stored several times",
        (f"{send.token} at {places[send.token]}" for send in acknowledged if len(places[send.token]) > 1),
    )
    yield from _several(
        "stored elsewhere than acknowledged",
        (
            f"{_named(send)}, is at {places[send.token][0]}"
            for send in acknowledged
            if len(places[send.token]) == 1 and not _is_there(send, places[send.token][0])
        ),
    )


def _is_there(send: Send, place: tuple[str, int, int]) -> bool:
    known = (send.queue, send.offset, send.physical if send.physical >= 0 else place[2])
    return known == place


def invented(history: History) -> Iterator[str]:
    """C2."""
    outcomes = {send.token: send.outcome for send in history.sends}
    for replica in history.replicas:
        tokens = Counter(record.token for record in replica.records if record.token)
        yield from _several(f"{replica.name} has what nobody sent", (each for each in tokens if each not in outcomes))
        refused = (each for each in tokens if outcomes.get(each) is Outcome.REFUSED)
        yield from _several(f"{replica.name} has what was refused", refused)
        yield from _several(f"{replica.name} has twice", (each for each, count in tokens.items() if count > 1))


def disordered(history: History) -> Iterator[str]:
    """C3."""
    rows: dict[tuple[str, str], list[Send]] = defaultdict(list)
    for send in history.acknowledged:
        rows[send.producer, send.queue].append(send)
    for (producer, queue), sends in rows.items():
        sends.sort(key=lambda send: send.number)
        wrong = (
            f"{earlier.token} at {earlier.offset}, then {later.token} at {later.offset}"
            for earlier, later in pairwise(sends)
            if later.offset <= earlier.offset
        )
        yield from _several(f"{producer} in {queue}", wrong)


def ambiguous(history: History) -> Iterator[str]:
    """C4."""
    meanings: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for send in history.acknowledged:
        meanings[send.queue, send.offset].setdefault(send.token, f"acknowledged by {send.broker}")
    for each in history.consumptions:
        meanings[each.queue, each.offset].setdefault(each.token, f"consumed by {each.consumer}")
    for replica in history.replicas:
        for record in replica.records:
            if record.token:
                meanings[record.queue, record.offset].setdefault(record.token, f"in the log of {replica.name}")
    yield from _several(
        "an offset with several messages",
        (
            f"{queue}:{offset} is {', '.join(f'{token} ({how})' for token, how in found.items())}"
            for (queue, offset), found in sorted(meanings.items())
            if len(found) > 1
        ),
    )


def not_consumed(history: History) -> Iterator[str]:
    """C5."""
    first: dict[str, dict[tuple[str, int], float]] = {group: {} for group in history.groups}
    tokens: dict[str, set[str]] = {group: set() for group in history.groups}
    again: dict[str, list[str]] = defaultdict(list)
    elsewhere: dict[str, list[str]] = defaultdict(list)
    answered = {send.token: (send.queue, send.offset) for send in history.acknowledged}
    struck = min((strike.at for strike in history.strikes), default=0.0)
    disorder: dict[str, list[str]] = defaultdict(list)
    highest: dict[tuple[str, str], int] = {}
    for each in sorted(history.consumptions, key=lambda each: each.at):
        seen = first.setdefault(each.group, {})
        received = tokens.setdefault(each.group, set())
        if each.token in received and each.at > struck:  # before it, consumers that join may share a queue for a moment
            again[each.group].append(each.token)
        received.add(each.token)
        place = (each.queue, each.offset)
        if answered.get(each.token, place) != place:
            elsewhere[each.group].append(f"{each.token} at {each.queue}:{each.offset}, not {answered[each.token]}")
        if place not in seen:
            seen[place] = each.at
            before = highest.get((each.group, each.queue), -1)
            if each.offset < before:
                disorder[each.group].append(f"{each.queue}:{each.offset} after {before}")
            highest[each.group, each.queue] = max(before, each.offset)
    for group in history.groups:
        missing = (_named(send) for send in history.acknowledged if send.token not in tokens[group])
        yield from _several(f"{group} did not receive", missing)
        yield from _several(f"{group} received elsewhere than acknowledged", elsewhere[group])
        if history.strikes and all(strike.kind == "switchover" for strike in history.strikes):
            yield from _several(f"{group} received twice, although there were switchovers only", again[group])
    for group in history.ordered:
        yield from _several(f"{group} received out of order", disorder[group])
    yield from _skipped(history, first)


def _skipped(history: History, first: Mapping[str, Mapping[tuple[str, int], float]]) -> Iterator[str]:
    """Offsets that a group has stored, although it had not received everything before them."""
    offsets: dict[str, list[int]] = defaultdict(list)
    for record in history.final.records if history.replicas else ():
        if record.queue:
            offsets[record.queue].append(record.offset)
    done: dict[tuple[str, str], int] = {}
    wrong = []
    for commit in sorted(history.commits, key=lambda each: each.at):
        key = (commit.group, commit.queue)
        start = done.get(key, 0)
        seen = first.get(commit.group, {})
        for offset in offsets[commit.queue]:
            if start <= offset < commit.offset and seen.get((commit.queue, offset), commit.at + 1) > commit.at:
                wrong.append(f"{commit.group} stored {commit.queue}:{commit.offset} without {offset}")
                break
        done[key] = max(start, commit.offset)
    yield from _several("messages are skipped", wrong)


# -- replicas --------------------------------------------------------------------------------------------------------


def unequal(history: History) -> Iterator[str]:
    """C6."""
    final = history.final
    for replica in history.replicas:
        yield from _several(f"the store of {replica.name} is not sound", replica.problems)
        if replica is final:
            continue
        begin = max(final.begin, replica.begin)
        ours = [record for record in final.records if record.physical >= begin]
        theirs = [record for record in replica.records if record.physical >= begin]
        for one, other in zip(ours, theirs, strict=False):
            if one != other:
                yield (
                    f"the logs of {final.name} and {replica.name} differ at {one.physical}: "
                    f"{one.token or 'no message'} and {other.token or 'no message'}"
                )
                break
        else:
            if final.end != replica.end or len(ours) != len(theirs):
                yield f"the log of {final.name} ends at {final.end}, that of {replica.name} at {replica.end}"


def unfenced(history: History) -> Iterator[str]:
    """C7."""
    leaders: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for leader in history.leaders:
        leaders[leader.epoch].add((leader.id, leader.address))
    for epoch, found in leaders.items():
        if len({master for master, _ in found}) > 1:
            yield f"epoch {epoch} has several masters: {sorted(found)}"
    yield from _contradictory_epochs(history)
    final = history.final
    if not final.epochs:
        return
    writers: dict[int, Counter[str]] = defaultdict(Counter)
    for record in final.records:
        if record.token:
            writers[final.epoch_at(record.physical)][record.writer] += 1
    for epoch, counts in writers.items():
        if len(counts) > 1:
            yield f"epoch {epoch} has several writers: {dict(counts)}"
    addresses = {epoch: {address for _, address in found} for epoch, found in leaders.items()}
    wrong = []
    for send in history.acknowledged:
        epoch = final.epoch_at(send.physical)
        allowed = addresses.get(epoch) if addresses else set(writers[epoch])
        if send.physical >= 0 and allowed is not None and send.broker not in allowed:
            wrong.append(f"{_named(send)}, in epoch {epoch} of {sorted(allowed)}")
    yield from _several("acknowledged outside its epoch", wrong)
    yield from _several("two epochs acknowledge at once", _late_acknowledgements(history))


def _late_acknowledgements(history: History) -> Iterator[str]:
    """Messages that were sent after a later epoch had acknowledged another one, and acknowledged by an earlier one."""
    final = history.final
    known = [(send, final.epoch_at(send.physical)) for send in history.acknowledged if send.physical >= 0]
    ended = deque(sorted(known, key=lambda each: each[0].ended))
    newest, by = 0, ""
    for send, epoch in sorted(known, key=lambda each: each[0].began):
        while ended and ended[0][0].ended < send.began:
            other, at = ended.popleft()
            newest, by = max((newest, by), (at, other.token))
        if epoch < newest:
            yield f"{_named(send)}, in epoch {epoch}, after {by} in epoch {newest}"


def _contradictory_epochs(history: History) -> Iterator[str]:
    starts: dict[int, dict[int, str]] = defaultdict(dict)
    final = history.final
    for replica in history.replicas:
        for epoch, start in replica.epochs:
            starts[epoch].setdefault(start, replica.name)
        for older, newer in pairwise(replica.epochs):
            if newer[0] <= older[0] or newer[1] < older[1]:
                yield f"the epochs of {replica.name} are not in order: {older} before {newer}"
        yield from _other_epochs(final, replica)
    for epoch, found in starts.items():
        if len(found) > 1:
            yield f"epoch {epoch} has several starts: {found}"


def _other_epochs(final: Replica, replica: Replica) -> Iterator[str]:
    """Parts of a log that two replicas give to different epochs."""
    if not final.epochs or not replica.epochs:
        return
    begin = max(final.begin, replica.begin)
    end = min(final.end, replica.end)
    starts = {start for _, start in (*final.epochs, *replica.epochs) if begin <= start < end} | {begin}
    for start in sorted(starts) if begin < end else ():
        if final.epoch_at(start) != replica.epoch_at(start):
            yield (
                f"the log at {start} is of epoch {final.epoch_at(start)} for {final.name}, "
                f"of {replica.epoch_at(start)} for {replica.name}"
            )
            return


def bad_tails(history: History) -> Iterator[str]:
    """C8."""
    acknowledged = {send.token for send in history.acknowledged}
    kept: set[str] = set()
    for replica in history.replicas:
        for tail in replica.tails:
            kept.update(tail.tokens)
            if not tail.is_whole:
                what = f"{replica.name} cut off what was acknowledged, at {tail.start}"
                yield from _several(what, (token for token in tail.tokens if token in acknowledged))
    there = {record.token for record in history.final.records}
    gone = (
        _named(send)
        for send in history.sends
        if send.outcome is Outcome.STORED and send.broker not in history.wiped and send.token not in there | kept
    )
    yield from _several("cut off and not kept", gone)


# -- the engine ------------------------------------------------------------------------------------------------------


def bad_transitions(history: History) -> Iterator[str]:
    """C9."""
    states = sorted(history.states, key=lambda state: state.revision)
    for state in states:
        if state.master not in state.sync:
            yield f"revision {state.revision}: master {state.master} is not in the sync set {state.sync}"
    if states and (states[0].epoch != 1 or states[0].sync != (states[0].master,)):
        yield f"the first state is not a foundation: {states[0]}"
    for older, newer in pairwise(states):
        if problem := _problem(older, newer):
            yield f"revision {newer.revision}: {problem}"


def _problem(older: State, newer: State) -> str:
    if newer.epoch == older.epoch:
        if newer.master != older.master:
            return f"master {older.master} became {newer.master} within epoch {newer.epoch}"
        return ""  # the master expands or shrinks its set
    if newer.epoch != older.epoch + 1:
        return f"epoch {newer.epoch} follows {older.epoch}"
    if newer.forced:
        return "" if newer.sync == (newer.master,) else f"a forced epoch begins with the set {newer.sync}"
    if newer.master not in older.sync:
        return f"master {newer.master} was not in the sync set {older.sync}"
    if not set(newer.sync) <= {newer.master, older.master} or not set(newer.sync) <= set(older.sync):
        return f"epoch {newer.epoch} begins with the set {newer.sync}, after {older.sync} of master {older.master}"
    return ""


# -- outages ---------------------------------------------------------------------------------------------------------


def outages(history: History) -> Iterator[tuple[str, str, float | None]]:
    """Yields kind, target and seconds of each strike: from it to the first SEND_OK of a send that began after it.

    None if there is no such send. A strike under which nothing can be stored counts from when it was healed.
    """
    sends = sorted(history.acknowledged, key=lambda send: send.ended)
    for strike in history.strikes:
        since = strike.at if strike.is_writable else strike.healed
        after = next((send.ended for send in sends if send.began >= since), None)
        yield strike.kind, strike.target, None if after is None else after - since


def too_long_outages(history: History, limits_s: Mapping[str, float]) -> Iterator[str]:
    """C10."""
    for kind, target, seconds in outages(history):
        limit = limits_s.get(kind)
        if limit is None:
            continue
        if seconds is None:
            yield f"nothing was acknowledged any more after {kind} of {target}"
        elif seconds > limit:
            yield f"nothing was acknowledged for {seconds:.2f} s after {kind} of {target}; {limit:g} s are allowed"


CHECKERS: dict[str, Callable[[History], Iterator[str]]] = {
    "C1": lost,
    "C2": invented,
    "C3": disordered,
    "C4": ambiguous,
    "C5": not_consumed,
    "C6": unequal,
    "C7": unfenced,
    "C8": bad_tails,
    "C9": bad_transitions,
}
