"""The optional packages: which extra of Penstock has a module, and the sentence if it is missing.

Verbs import what they need when they run. `main` turns the import error of a module that is listed here into that
sentence, so a verb needs no check of its own unless it would do work before.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from penstock.errors import MissingPackage

EXTRAS: Final = {
    "console": ("nicegui",),
    "arrow": ("pyarrow",),
    "spark": ("pyspark", "pandas", "pyarrow"),
    "lake": ("pyspark", "grpc"),
    "sql": ("duckdb", "pyarrow"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "avro": ("fastavro",),
    "protobuf": ("google.protobuf",),
    "compression": ("lz4", "zstandard"),
    "telemetry": ("opentelemetry",),
}
"""The modules of each extra, by the extra's name in `pip install 'penstock[NAME]'`."""
_PIPELINE: Final = "pipeline"
_SQL: Final = "sql"


def missing_modules(extra: str) -> list[str]:
    """Returns the modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if not _is_installed(name)]


def how_to_install(extra: str) -> str:
    """Returns what is missing of an extra and the command that installs it; empty if nothing is missing."""
    missing = missing_modules(extra)
    if not missing:
        return ""
    return f"needs the package{'s'[: len(missing) > 1]} {', '.join(missing)}: pip install 'penstock[{extra}]'"


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package above it
        return False


def missing_package(module: str, words: Sequence[str]) -> MissingPackage | None:
    """Returns the error about a module that could not be imported; None if no extra has it. `words` is the command
    line.
    """
    top = module.partition(".")[0]
    extra = next((extra for extra, names in EXTRAS.items() if top in {name.partition(".")[0] for name in names}), None)
    if extra is None:
        return None
    if words[:1] == [_PIPELINE] and top in EXTRAS["spark"]:
        extra = "spark"  # the job needs all of it, so one installation is enough
    if words[:1] == [_SQL] and top in EXTRAS["sql"]:
        extra = "sql"
    verb = " ".join(("penstock", *words[: 2 if len(words) > 1 and not words[1].startswith("-") else 1]))
    return MissingPackage(f"`{verb}` needs the package {top}, which is not installed: pip install 'penstock[{extra}]'")
