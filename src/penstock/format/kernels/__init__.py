"""The kernels: the code that touches every message, in two twins with the same names, signatures and results.

`_compiled` is an extension module, built where there is a C compiler. `plain` is reference code in Python that runs
everywhere, many times slower. The choice is made once, at the first use of a name, by the environment variable
PENSTOCK_KERNELS: compiled, plain, or auto (the default), which is compiled if possible and else plain with a warning.
`active` says which one runs. From then on the names are plain attributes of this module. Until then neither the twins
nor numpy are imported, so that commands and clients that touch no message start fast.

Positions count from the start of `data`, which is a whole log file or a suffix of one, so it ends where the file ends.
`base` is the physical offset of its first byte. Offsets, positions and sizes are in bytes, timestamps in milliseconds.
No function reads or writes outside the buffers that it is given, whatever they contain.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import typing

from penstock.errors import BadSettings
from penstock.format.kernels import source_fingerprint

if typing.TYPE_CHECKING:
    from penstock.format.kernels import parameter_types, plain
    from penstock.format.kernels.parameter_types import *  # noqa: F403
    from penstock.format.kernels.plain import *  # noqa: F403
    from penstock.format.kernels.plain.record import view_of as view_of

    active: str
    """The twin that runs: 'compiled' or 'plain'."""

_loading = threading.RLock()


def _choose(name: str) -> str:
    """Returns 'compiled' or 'plain'; raises BadSettings if `name` is unknown or compiled kernels cannot be had."""
    if name not in ("auto", "compiled", "plain"):
        raise BadSettings(f"PENSTOCK_KERNELS: '{name}' is not one of auto, compiled, plain")
    if name == "plain":
        return "plain"
    try:
        _check_compiled()
    except ImportError as error:
        if name == "compiled":
            raise BadSettings(
                f"the compiled kernels cannot be used ({error}); "
                "install with a C compiler and Cython, or choose PENSTOCK_KERNELS=plain"
            ) from error
        logging.getLogger("penstock").warning(
            "penstock: running on the plain kernels, which are many times slower, "
            "because the compiled ones cannot be imported (%s)",
            error,
        )
        return "plain"
    return "compiled"


def _check_compiled() -> None:
    """Raises ImportError if the extension module is missing or was built from other sources than those beside it.

    An installed wheel has no sources beside it; there the names decide.
    """
    module = importlib.import_module(f"{__name__}._compiled")
    expected = source_fingerprint.fingerprint()
    if expected and getattr(module, "_sources", "") != expected:
        raise ImportError("it was built from other sources; run: python setup.py build_ext --inplace --force")
    missing = [kernel for kernel in plain.__all__ if not hasattr(module, kernel)]
    if missing:
        raise ImportError(f"it was built from other sources and has no {missing[0]}")


def _load() -> None:
    """Imports both twins, chooses, and makes the chosen one's names attributes of this module, all at once."""
    importlib.import_module(f"{__name__}.parameter_types")
    importlib.import_module(f"{__name__}.plain")
    chosen = _choose(os.environ.get("PENSTOCK_KERNELS", "auto"))
    twin = plain if chosen == "plain" else importlib.import_module(f"{__name__}._compiled")
    names = {name: getattr(parameter_types, name) for name in parameter_types.__all__}
    names |= {name: getattr(twin, name) for name in plain.__all__}
    names |= {"view_of": plain.record.view_of, "active": chosen}
    globals().update(names, __all__=sorted(names))


if not typing.TYPE_CHECKING:  # for the type checker the names are imported above

    def __getattr__(name: str) -> object:
        """Loads the kernels at the first use of one of their names. Raises BadSettings as `_choose` does."""
        with _loading:
            if "active" not in globals() and (name == "__all__" or not name.startswith("__")):
                _load()
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
