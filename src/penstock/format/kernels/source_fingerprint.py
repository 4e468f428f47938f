"""A fingerprint of the sources of the compiled kernels.

setup.py compiles it into the extension module, and the package compares it at import, so an extension that was built
from other sources is refused instead of run. setup.py executes this file before anything is installed: it may import
only the standard library.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent
_SUFFIXES = (".h", ".pxi", ".pyx")


def source_files(folder: Path = FOLDER) -> list[Path]:
    """Every file that the extension module is built from, sorted by name; none where only a wheel is installed."""
    return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)


def fingerprint(folder: Path = FOLDER) -> str:
    """16 hex digits that change with any byte or name of the sources; empty if there are no sources."""
    files = source_files(folder)
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest() if files else ""
