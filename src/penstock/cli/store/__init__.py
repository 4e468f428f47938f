"""The group `penstock store`: inspects, verifies and repairs a store offline."""

from __future__ import annotations

import typer

from penstock.cli.options import help_if_alone
from penstock.cli.pipeline.diff import diff_here
from penstock.cli.pipeline.usage import lag_here, usage_here
from penstock.cli.store.info import conf, info
from penstock.cli.store.read import dump, get, log, offset, query
from penstock.cli.store.repair import rebuild, recover, repair
from penstock.cli.store.retention import retention
from penstock.cli.store.verify import verify

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def store(context: typer.Context) -> None:
    """Inspect, verify and repair a store offline.

    recover, repair, rebuild and retention change the store, which must not be open; the others only read. A store in
    use is shown in its current state, a crashed one as a start would serve it. File sizes are read from the files;
    --config and --set supply what the files do not say.

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
