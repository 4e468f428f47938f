"""Builds the compiled kernels where there is a compiler; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize
except ImportError:  # no Cython: the plain twin of the kernels is used
    extensions = []
else:
    extensions = cythonize(
        [
            Extension(
                "penstock.format.kernels._compiled",
                ["src/penstock/format/kernels/_compiled.pyx"],
                depends=sorted(str(part) for part in Path("src/penstock/format/kernels").glob("*.pxi")),
                extra_compile_args=["-O3"],
            )
        ],
        language_level=3,
    )
    for extension in extensions:
        extension.optional = True  # no compiler: the build goes on without it; cythonize() would drop this if it had it

setup(ext_modules=extensions)
