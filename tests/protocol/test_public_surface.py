from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import penstock.protocol


def test_the_packages_names_are_what_it_says() -> None:
    values = vars(penstock.protocol).items()
    public = {name for name, value in values if not name.startswith("_") and not isinstance(value, ModuleType)}
    assert public == set(penstock.protocol.__all__)


def test_every_module_says_what_it_is() -> None:
    for module in pkgutil.walk_packages(penstock.protocol.__path__, "penstock.protocol."):
        assert (importlib.import_module(module.name).__doc__ or "").strip(), module.name
