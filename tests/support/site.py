"""The documents as a site, built as `make docs` does, in a folder of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from support import ROOT

BUILD_S = 120


def build_site(folder: Path) -> Path:
    """Builds the site from a copy of the documents and the sources, so that nothing in the clone changes. Returns the
    folder of its pages."""
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.c"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (command,) = re.findall(r"^docs: setup\n\t\$\(BIN\)/(\S+) (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M)
    words = [str(Path(sys.executable).with_name(command[0])), *command[1].split()]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return folder / "site"
