"""The group `penstock pipeline`: Spark jobs over whole stores."""

from __future__ import annotations

import typer

from penstock.cli.options import help_if_alone
from penstock.cli.pipeline import lake
from penstock.cli.pipeline.diff import diff
from penstock.cli.pipeline.dispatch import dispatch
from penstock.cli.pipeline.export import export
from penstock.cli.pipeline.replay import import_files, replay
from penstock.cli.pipeline.search import search
from penstock.cli.pipeline.usage import lag, usage
from penstock.cli.pipeline.verify import rebuild, verify

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def pipeline(context: typer.Context) -> None:
    """Spark jobs over whole stores.

    They run on this machine, or on a Spark cluster with --master. Most only read, and the store may be in use. Exit
    status: 0 done; 1 problems found (verify, diff), or no such queue (rebuild); 2 could not run.

    Examples:

    \b
      penstock pipeline usage --store data/store
      penstock pipeline search --store data/store --text 'order 7'
      penstock pipeline usage --store data/store --master spark://10.0.0.1:7077
    """
    help_if_alone(context)


for job in (usage, search, lag, verify, diff, export, rebuild, replay, dispatch):
    app.command()(job)
app.command("import")(import_files)
app.add_typer(lake.app, name="lake")
