"""Builds what an index would get: the sdist, and a wheel for each Python version from 3.11 on that is installed.

    .venv/bin/python tools/build_wheels.py [--python PROGRAM ...] [--into dist]

`make wheels` calls it. Wheels are built from the sdist, not from the clone. auditwheel then gives each the oldest
manylinux tag that its symbols allow, which depends on the machine's C library: for an older one, run this in an older
system's container. Without auditwheel or patchelf the wheels keep the tag of this machine, which an index refuses; the
last lines say so, and the status is 1. A wheel without the compiled kernels is an error: it would be many times slower.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
MINE = f"{sys.version_info[0]}.{sys.version_info[1]}"
NEEDED = ("setuptools", "Cython", "wheel")
READY = f"import {', '.join(NEEDED)}"


def run(*words: object, folder: Path | None = None) -> None:
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"build_wheels: {words[0]} failed:\n{done.stdout}{done.stderr}")


def installed_pythons() -> list[str]:
    """This Python, and one of each other version."""
    others = (installed_python(version) for version in VERSIONS if version != MINE)
    return [sys.executable, *(each for each in others if each)]


def installed_python(version: str) -> str | None:
    """The Python of a version: this one, one on the path, or one that pyenv keeps and has not put there."""
    if version == MINE:
        return sys.executable
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = (shutil.which(f"python{version}"), *map(str, sorted(kept.glob(f"{version}.*/bin/python"))))
    return next((each for each in candidates if each and works(each)), None)


def works(python: str) -> bool:
    """False for a program that only says that its version is not installed, such as a version manager's."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def builder(python: str, folder: Path) -> str:
    """A Python that can build: this one if it has what is needed, otherwise one in a new environment."""
    if subprocess.run([python, "-c", READY], capture_output=True, check=False).returncode == 0:
        return python
    run(python, "-m", "venv", folder)
    made = str(folder / "bin" / "python")
    run(made, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *NEEDED)
    return made


def build_wheel(python: str, sdist: Path, folder: Path) -> Path:
    made = folder / "made"
    options = ("--no-deps", "--no-build-isolation", "--no-cache-dir")
    run(builder(python, folder / "env"), "-m", "pip", "wheel", "-q", *options, "-w", made, sdist)
    (wheel,) = made.iterdir()
    with zipfile.ZipFile(wheel) as packed:
        if not any("/kernels/_compiled." in name and name.endswith(".so") for name in packed.namelist()):
            sys.exit(
                f"build_wheels: {wheel.name} has no compiled kernels; install a C compiler and the headers of Python"
            )
    return wheel


def main() -> int:
    parser = argparse.ArgumentParser(description="Build sdist and wheels.")
    parser.add_argument("--python", action="append", help="build with this Python; several times for several")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    here = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((here, os.environ.get("PATH", os.defpath)))  # auditwheel calls patchelf
    missing = [tool for tool in ("auditwheel", "patchelf") if shutil.which(tool) is None]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "-q", "--sdist", "--no-isolation", "--outdir", folder / "sdist", folder=ROOT)
        (sdist,) = (folder / "sdist").iterdir()
        print(shutil.copy(sdist, given.into))
        for number, python in enumerate(given.python or installed_pythons()):
            wheel = build_wheel(python, sdist, folder / str(number))
            if missing:
                print(shutil.copy(wheel, given.into))
                continue
            repaired = folder / str(number) / "repaired"
            run("auditwheel", "repair", "-w", repaired, wheel)
            (wheel,) = repaired.iterdir()
            print(shutil.copy(wheel, given.into))
    if missing:
        print(f"{' and '.join(missing)} not installed: these wheels are for this machine only", file=sys.stderr)
        print("an index refuses them; pip install auditwheel patchelf, then repeat", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
