"""The table of options for docs/reference/spark.md: `python -m penstock.pipeline.option_page`."""

from __future__ import annotations

from penstock.pipeline.option_spec import Use
from penstock.pipeline.options import OPTIONS

_USES = {Use.ALL: "all", Use.READ: "read", Use.BATCH: "batch", Use.STREAM: "stream", Use.WRITE: "write"}


def table() -> str:
    """One line for each option."""
    lines = ["| Option | For | Default | Meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        lines.append(f"| {names} | {_USES[option.use]} | {option.default} | {option.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
