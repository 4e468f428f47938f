"""`penstock pipeline lag` and `penstock store lag`: how far consumer groups are behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from penstock.cli.on_spark import Confs, Master, MaybeNamesrv, Stores, check, place, session
from penstock.cli.options import AsJson, Config, Folder, Pairs, option
from penstock.cli.output import add_row, moment, say, show, table, write_json

if TYPE_CHECKING:
    from penstock.pipeline.jobs.lag import Behind

Group = Annotated[str, option("--group", "G", "Only this group.")]


def lag(
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    group: Group = "",
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Show how far consumer groups are behind, in messages and in time, and which queues are stuck.

    Of stores, by their consumerOffset.json and their queues; of a cluster, by what its brokers say. Exit status 0:
    done; 2: it could not be run.

    Examples:

    \b
      penstock pipeline lag --store data/store
      penstock pipeline lag --namesrv 127.0.0.1:9876 --group warehouse --json
    """
    from penstock.pipeline.jobs.lag import lag as look
    from penstock.pipeline.jobs.lag import lag_frame

    where = place(stores, namesrv, config, pairs)
    check(where)
    rows = look(where, group)
    with session("lag", master, conf, light_java=True) as spark:
        behind = lag_frame(spark, rows).groupBy().sum("behind").first()
    _tell(rows, group, as_json)
    if stores and not as_json:
        total = 0 if behind is None else behind[0] or 0
        say(f"{total} messages behind in all; `penstock store lag {stores[0]}` says the same at once")


def lag_here(
    folder: Folder, group: Group = "", as_json: AsJson = False, config: Config = None, pairs: Pairs = None
) -> None:
    """Show how far consumer groups are behind, in messages and in time, and which queues are stuck.

    The same as `penstock pipeline lag`, without Spark. Exit status 0: done; 2: it could not be run.

    Examples:

    \b
      penstock store lag data/store
      penstock store lag data/store --group warehouse --json
    """
    from penstock.pipeline.jobs.lag import lag as look

    _tell(look(place([str(folder)], config=config, pairs=pairs), group), group, as_json)


def _tell(rows: Sequence[Behind], group: str, as_json: bool) -> None:
    if not rows:
        say(f"nothing is known of {f'a group {group}' if group else 'any group'} here: none has consumed anything.")
    if as_json:
        write_json({"queues": [_object(each) for each in rows]})
        return
    made = table(
        "Consumer groups",
        "group", "topic", "broker", "queue", "consumed", "end", "behind", "gone", "time behind", "last consumed", "",
        right=("queue", "consumed", "end", "behind", "gone", "time behind"),
    )  # fmt: skip
    for each in rows:
        spent = f"{each.behind_ms / 1000:.0f} s" if each.behind else "-"
        consumed = each.consumer_offset, each.max_offset, each.behind, each.gone, spent, moment(each.last_consumed_ms)
        add_row(made, each.group, each.topic, each.broker, each.queue_id, *consumed, "stuck" if each.stuck else "")
    show(made)


def _object(each: Behind) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(each),
        "behind": each.behind,
        "gone": each.gone,
        "behind_ms": each.behind_ms,
    }
