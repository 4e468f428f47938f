"""Builds the compiled kernels where there is a compiler; everything else is in pyproject.toml.

With PENSTOCK_KERNELS=compiled a build without them fails; otherwise it succeeds, and the plain kernels run.
"""

import os
import runpy

from setuptools import Extension, setup

KERNELS = "src/penstock/format/kernels"
IS_REQUIRED = os.environ.get("PENSTOCK_KERNELS") == "compiled"

try:
    from Cython.Build import cythonize
except ImportError:  # without Cython the plain kernels are used
    if IS_REQUIRED:
        raise
    extensions = []
else:
    # Without debug information it is built a quarter faster; the sanitizers' reports need it.
    debug = [] if "-fsanitize" in os.environ.get("CFLAGS", "") else ["-g0"]
    sources = runpy.run_path(f"{KERNELS}/source_fingerprint.py")
    extensions = cythonize(
        [
            Extension(
                "penstock.format.kernels._compiled",
                [f"{KERNELS}/_compiled.pyx"],
                depends=[str(path) for path in sources["source_files"]()],
                include_dirs=[KERNELS],
                define_macros=[("PENSTOCK_SOURCES", f'"{sources["fingerprint"]()}"')],
                extra_compile_args=["-O3", *debug],
            )
        ],
        language_level=3,
    )
    for extension in extensions:
        extension.optional = not IS_REQUIRED  # set here, because cythonize() would drop this argument

setup(ext_modules=extensions)
