from __future__ import annotations

from types import ModuleType

from penstock.format import kernels
from penstock.format.kernels import _compiled, plain


def public_names(module: ModuleType) -> set[str]:
    values = vars(module).items()
    return {name for name, value in values if not name.startswith("_") and not isinstance(value, ModuleType)}


def test_the_kernels_names_are_what_they_say() -> None:
    assert public_names(kernels) - {"annotations", "BadSettings"} == set(kernels.__all__)


def test_both_twins_have_the_same_kernels() -> None:
    assert set(plain.__all__) == public_names(_compiled)
