"""The group `penstock store`: looks into a store, checks it, and puts it in order; no broker is needed."""

from __future__ import annotations

import typer

from penstock.cli.diff import diff_here
from penstock.cli.lag import lag_here
from penstock.cli.options import help_if_alone
from penstock.cli.store_conf import conf
from penstock.cli.store_info import info
from penstock.cli.store_log import log
from penstock.cli.store_read import dump, get, offset, query
from penstock.cli.store_recover import recover
from penstock.cli.store_repair import rebuild, repair
from penstock.cli.store_retention import retention
from penstock.cli.store_verify import verify
from penstock.cli.usage import usage_here

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def store(context: typer.Context) -> None:
    """Look into a store, check it, put it in order: no broker is needed.

    recover, repair, rebuild and retention change the store and need it to themselves; the others change nothing. A
    store in use is shown as it is at that moment, one that crashed as a start would serve it. File sizes are taken from
    the files; where those cannot tell, from --config and --set.

    Examples:

    \b
      penstock store info data/store
      penstock store dump data/store --topic orders --json
      penstock store verify data/store
    """
    help_if_alone(context)


for verb in (info, dump, log, get, query, offset, conf, verify, recover, repair, rebuild, retention):
    app.command()(verb)
app.command("usage")(usage_here)
app.command("lag")(lag_here)
app.command("diff")(diff_here)
