"""`penstock store log`: the commitlog as it lies on disk."""

from __future__ import annotations

from penstock.cli.log_reading import LogReader
from penstock.cli.messages import write_message
from penstock.cli.opening import say_state
from penstock.cli.options import AsJson, Config, Folder, NoBody, Pairs
from penstock.cli.output import write, write_json
from penstock.format.rows import Reason
from penstock.format.scan import Blank, Damage
from penstock.store.folder import StoreFolder


def log(
    folder: Folder, config: Config = None, pairs: Pairs = None, as_json: AsJson = False, no_body: NoBody = False
) -> None:
    """Every record of the log, in log order.

    Read straight from the commitlog's files, whatever queues, index and recovery make of them: records of every topic,
    also prepared and rolled back ones, the fillers at the ends of files, and damage, with the reason.

    Examples:

    \b
      penstock store log data/store
      penstock store log data/store --no-body --json
    """
    place = StoreFolder.find(folder, config, pairs)
    found = LogReader(place)
    say_state(place, "what follows is the log as it lies in the files")
    for item in found:
        if isinstance(item, Blank | Damage):
            _write_other(item, as_json)
        else:
            write_message(*item, as_json=as_json, body=not no_body)


def _write_other(item: Blank | Damage, as_json: bool) -> None:
    kind = "blank" if isinstance(item, Blank) else "damage"
    reason = Reason.BLANK if isinstance(item, Blank) else item.reason
    if as_json:
        write_json({"kind": kind, "physical_offset": item.position, "size": item.size, "reason": reason.name})
    else:
        write(f"{kind}  at {item.position}  {item.size} bytes  {reason.name}\n")
