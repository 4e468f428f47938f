"""Kubernetes' own types, to check manifests without a cluster: classes that were made from its OpenAPI document.

They are the package lightkube-models. Of lightkube itself, a client that is not needed here, they import one module of
three names, which are given below.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

_NEEDED: Final = "lightkube.core.schema"
_MODULES: Final = {
    "v1": "core_v1",
    "apps/v1": "apps_v1",
    "policy/v1": "policy_v1",
    "networking.k8s.io/v1": "networking_v1",
}


def problems(manifest: dict[str, Any]) -> list[str]:
    """Returns what Kubernetes would not know or not take: fields, missing fields, types."""
    if _NEEDED not in sys.modules:
        stand_in: Any = types.ModuleType(_NEEDED)
        stand_in.DictMixin, stand_in.dataclass, stand_in.field = object, dataclasses.dataclass, dataclasses.field
        sys.modules[_NEEDED] = stand_in
    models = importlib.import_module(f"lightkube.models.{_MODULES[manifest['apiVersion']]}")
    return list(_check(manifest, getattr(models, manifest["kind"]), manifest["kind"]))


def _check(value: Any, kind: Any, where: str) -> Iterator[str]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Union:
        found = [list(_check(value, each, where)) for each in arguments if each is not type(None)]
        if all(found):
            yield from found[0]
    elif origin is list or kind is list:
        if not isinstance(value, list):
            yield f"{where} must be a list"
            return
        for at, each in enumerate(value):
            yield from _check(each, arguments[0], f"{where}[{at}]")
    elif origin is dict or kind is dict:
        if not isinstance(value, dict):
            yield f"{where} must be a mapping"
            return
        for name, each in value.items():
            yield from _check(each, arguments[1] if arguments else object, f"{where}.{name}")
    elif dataclasses.is_dataclass(kind):
        yield from _check_fields(value, kind, where)
    elif kind is not Any and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        yield f"{where} is {value!r}, and must be {kind.__name__}"


def _check_fields(value: Any, kind: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} must be a mapping"
        return
    hints = get_type_hints(kind)
    fields = {_name_of(each): each for each in dataclasses.fields(kind)}
    for name, each in value.items():
        if name not in fields:
            yield f"{where} has no field {name}"
        else:
            yield from _check(each, hints[fields[name].name], f"{where}.{name}")
    for name, each in fields.items():
        has_default = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
        if name not in value and not has_default:
            yield f"{where} needs the field {name}"


def _name_of(field: dataclasses.Field[Any]) -> str:
    """Names that Python reserves, such as `from`, have another one in the class."""
    return str(field.metadata.get("json", field.name))
