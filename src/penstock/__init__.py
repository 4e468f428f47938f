"""Penstock: a message store and broker whose files and wire protocol are Apache RocketMQ's.

`scan`, `dataset` and `scan_polars` read the messages of stores as Arrow, without a broker and without Spark. They are
imported at their first use, because they need the extra `arrow`.
"""

from __future__ import annotations

import typing

__version__ = "0.1.0"
__all__ = ["__version__", "dataset", "scan", "scan_polars"]

if typing.TYPE_CHECKING:
    from penstock.pipeline.arrow_dataset import dataset as dataset
    from penstock.pipeline.arrow_scan import scan as scan
    from penstock.pipeline.polars_scan import scan_polars as scan_polars
else:
    _LAZY = {"scan": "arrow_scan", "dataset": "arrow_dataset", "scan_polars": "polars_scan"}

    def __getattr__(name: str) -> object:
        """Imports the module of a public function at the first use of its name."""
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"{__name__}.pipeline.{_LAZY[name]}"), name)
