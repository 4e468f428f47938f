"""Runs tests/spark/versions/checks.py with each supported version of Spark, and makes the table of the results.

    .venv/bin/python tools/spark_matrix.py [CELL ...] [--short] [--record]
    .venv/bin/python tools/spark_matrix.py --table

A cell is a version of PySpark and one of Python, such as 4.2.0/3.12; `make test-spark-matrix` runs all of them, and
`.ci/run` with `--short` a few checks of two, whose results are not kept. Each cell has an environment of its own under
.cache/spark-matrix, made by uv, which links files from its cache (UV_CACHE_DIR): a version of PySpark is fetched once.
An environment is removed after its run. Maven fetches the jars of Delta and Iceberg for the versions of Spark that have
them. What cannot be had is skipped with the reason; a check that fails makes the status 1.

With `--record` a run replaces what tests/spark/versions/results.json has of its cells, and writes the table of all
kept results into docs/reference/compatibility.md. `--table` writes only the table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from build_wheels import VERSIONS, build_wheel, installed_python, run

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "spark-matrix"
CHECKS = ROOT / "tests" / "spark" / "versions" / "checks.py"
RESULTS = CHECKS.with_name("results.json")
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- from tests/spark/versions/results.json -->\n", "<!-- end -->\n"
TIMEOUT_S: Final = 1200
DELTA: Final = "4.4.0"


class Spark(NamedTuple):
    """A version of PySpark, and what it is tried with."""

    version: str
    jars: tuple[str, ...] = ()
    """Table formats that exist for it, tried with the first version of Python: they are Java."""
    with_delta_package: bool = False

    @property
    def minor(self) -> str:
        return self.version.rpartition(".")[0]


def _delta(minor: str) -> str:
    return f"io.delta:delta-spark_{minor}_2.13:{DELTA}"


def _iceberg(minor: str, version: str) -> str:
    return f"org.apache.iceberg:iceberg-spark-runtime-{minor}_2.13:{version}"


SPARKS: Final = (
    Spark("4.0.5", (_delta("4.0"), _iceberg("4.0", "1.11.0")), with_delta_package=True),
    Spark("4.1.4", (_delta("4.1"), _iceberg("4.1", "1.12.0")), with_delta_package=True),
    Spark("4.2.0", (_delta("4.2"),), with_delta_package=True),  # the newest that delta-spark accepts
    Spark("4.3.0"),
)
SHORT: Final = ("4.0.5/3.13", "4.2.0/3.12")
TABLE_FORMATS: Final = ("Delta", "Iceberg")
COLUMNS: Final = ("batch read", "batch write", "streams", "stream write", "jobs", *TABLE_FORMATS)


class Skipped(Exception):
    """A cell cannot be run here; the text is the reason."""


class Cell(NamedTuple):
    """A version of Spark with a version of Python."""

    spark: Spark
    python: str

    @property
    def jars(self) -> tuple[str, ...]:
        return self.spark.jars if self.python == VERSIONS[0] else ()

    def __str__(self) -> str:
        return f"{self.spark.version}/{self.python}"


def all_cells() -> list[Cell]:
    return [Cell(spark, python) for spark in SPARKS for python in VERSIONS]


# -- environments ----------------------------------------------------------------------------------------------------


def uv() -> str:
    """The path of uv: on the path, or installed from the index into an environment of its own."""
    if found := shutil.which("uv"):
        return found
    program = CACHE / "uv" / "bin" / "uv"
    if not program.exists():
        run(sys.executable, "-m", "venv", CACHE / "uv")
        fetch([CACHE / "uv" / "bin" / "python", "-m", "pip", "install", "-q", "uv"])
    return str(program)


def fetch(words: Sequence[object], folder: Path | None = None) -> str:
    """Runs a program that gets something from the network. Raises Skipped with its last lines if it fails."""
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower()]
        raise Skipped(f"{Path(str(words[0])).name} failed: {' '.join((errors or said[-3:])[:2])[:400]}")
    return done.stdout


def wheel_of(python: str) -> Path:
    """This clone as a wheel for a version of Python. A wheel of the same sources is used again."""
    sources = hashlib.sha256()
    for path in sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".pyx", ".pxi", ".h")):
        sources.update(path.read_bytes())
    folder = CACHE / "wheels" / f"{python}-{sources.hexdigest()[:16]}"
    if not folder.exists():
        program = installed_python(python)
        assert program is not None
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            work = Path(name)
            run(sys.executable, "-m", "build", "-q", "--sdist", "--no-isolation", "--outdir", work / "s", folder=ROOT)
            wheel = build_wheel(program, next((work / "s").iterdir()), work)
            for older in (CACHE / "wheels").glob(f"{python}-*"):
                shutil.rmtree(older)
            folder.mkdir(parents=True)
            shutil.copy(wheel, folder)
    (wheel,) = folder.iterdir()
    return wheel


def make_environment(cell: Cell) -> Path:
    """A new environment with Penstock, PySpark and, where its package allows this version, delta-spark."""
    program = installed_python(cell.python)
    if program is None:
        raise Skipped(f"Python {cell.python} is not installed")
    folder = CACHE / "environments" / str(cell).replace("/", "-python")
    shutil.rmtree(folder, ignore_errors=True)
    wanted = [f"penstock[lake] @ {wheel_of(cell.python).as_uri()}", f"pyspark=={cell.spark.version}"]
    if cell.jars and cell.spark.with_delta_package:
        wanted.append(f"delta-spark=={DELTA}")
    constraints = CACHE / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    own = re.compile(r"pyspark|py4j|grpcio|googleapis|protobuf|zstandard")  # each Spark has its own
    constraints.write_text("\n".join(line for line in pinned if not own.match(line)), encoding="utf-8")
    where = ("--python", folder / "bin" / "python")
    fetch([uv(), "venv", "-q", "--python", program, folder])
    fetch([uv(), "pip", "install", "-q", *where, "-c", constraints, *wanted])
    return folder


_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>spark-matrix</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<exclusions><exclusion><groupId>org.apache.spark</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    "</dependency>"
)


def jars_of(cell: Cell) -> list[Path]:
    """The jars of the table formats, with what they need beside Spark."""
    if not cell.jars:
        return []
    folder = CACHE / "jars" / cell.spark.minor
    if not folder.exists():
        if shutil.which("mvn") is None:
            raise Skipped("Maven, which fetches Delta and Iceberg, is not installed")
        project = CACHE / "maven" / cell.spark.minor
        project.mkdir(parents=True, exist_ok=True)
        dependencies = "".join(_DEPENDENCY.format(*jar.split(":")) for jar in cell.jars)
        (project / "pom.xml").write_text(_POM.format(dependencies), encoding="utf-8")
        copy = ("dependency:copy-dependencies", f"-DoutputDirectory={folder}.new", "-DincludeScope=runtime")
        fetch(["mvn", "-q", "-B", "-Dstyle.color=never", *copy], folder=project)
        Path(f"{folder}.new").rename(folder)
    return sorted(folder.glob("*.jar"))


# -- runs ------------------------------------------------------------------------------------------------------------


def check(cell: Cell, *, short: bool = False) -> dict[str, Any]:
    """Makes the environment of a cell, runs all checks or the short set in it, and removes it."""
    try:
        jars = jars_of(cell)
    except Skipped as reason:
        print(f"skipped: Delta and Iceberg: {reason}", flush=True)
        jars = []
    environment = make_environment(cell)
    result = CACHE / "result.json"
    result.unlink(missing_ok=True)
    words = [str(environment / "bin" / "python"), str(CHECKS), str(result)]
    if short:
        words.append("--short")
    if jars:
        names = " ".join(cell.jars)
        words += ["--jars", ",".join(map(str, jars))]
        words += [f"--{table}" for table in ("delta", "iceberg") if table in names]
    without = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")  # Spark starts many processes
    given = {name: value for name, value in os.environ.items() if name not in without}
    given["PATH"] = f"{environment / 'bin'}{os.pathsep}{given['PATH']}"
    log = CACHE / f"{str(cell).replace('/', '-python')}.log"
    try:
        with log.open("w") as said:
            ran = subprocess.run(words, env=given, stdout=None, stderr=said, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"spark_matrix: {cell} took more than {TIMEOUT_S} s; see {log}")
    finally:
        shutil.rmtree(environment)
    if not result.exists():
        sys.exit(f"spark_matrix: {cell} ended with {ran.returncode} before its first check; see {log}")
    return {**json.loads(result.read_text(encoding="utf-8")), "jars": list(cell.jars if jars else ())}


def size_of(folder: Path) -> float:
    """What a folder takes on disk, in GB; a file with several links counts once."""
    seen = {(status.st_dev, status.st_ino): status.st_blocks * 512 for status in map(os.lstat, folder.rglob("*"))}
    return sum(seen.values()) / 1e9


def run_cells(cells: Sequence[Cell], results: Path, *, short: bool = False) -> int:
    """Runs the cells, and writes their results after each. Returns the exit status."""
    ran, skipped, failed = 0, 0, 0
    CACHE.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        begun = time.monotonic()
        print(f"-- PySpark {cell.spark.version}, Python {cell.python}", flush=True)
        try:
            each = check(cell, short=short)
        except Skipped as reason:
            print(f"skipped: {reason}", flush=True)
            skipped += 1
            continue
        ran += 1
        failed += any(result.startswith("failed") for part in each["checks"].values() for result in part.values())
        print(f"-- {time.monotonic() - begun:.0f} s", flush=True)
        record(each, results)
    print(f"{ran} cells run, {failed} with failures, {skipped} skipped; {size_of(CACHE):.1f} GB stay in {CACHE}")
    if ran:
        packages = Path(fetch([uv(), "cache", "dir"]).strip())
        print(f"uv keeps {size_of(packages):.1f} GB of packages in {packages}; `{uv()} cache clean` removes them")
    return 1 if failed else 0


def cell_of(result: dict[str, Any]) -> str:
    """The name of the cell that gave a result."""
    return f"{result['spark']}/{result['python'].rpartition('.')[0]}"


def record(result: dict[str, Any], file: Path) -> None:
    """Puts the result of a cell into a file, in place of an older one of the same cell."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    by_cell = {**{cell_of(each): each for each in kept}, cell_of(result): result}
    ordered = [by_cell[str(cell)] for cell in all_cells() if str(cell) in by_cell]
    file.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


# -- the table -------------------------------------------------------------------------------------------------------


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a table: a row for each version of Spark, with the versions of Python that gave the same.

    A cell without a result is "not run".
    """
    lines = [
        f"| PySpark | Python | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---|' * len(COLUMNS)}",
    ]
    rows: dict[tuple[str, ...], list[str]] = {}
    by_cell = {cell_of(each): each for each in results}
    for cell in all_cells():
        result = by_cell.get(str(cell))
        row = (cell.spark.version, *("not run" if result is None else _cell(column, result) for column in COLUMNS))
        rows.setdefault(row, []).append(cell.python)
    for (spark, *cells), pythons in rows.items():
        lines.append(f"| {spark} | {', '.join(pythons)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(column: str, result: dict[str, Any]) -> str:
    """What the table says of one column: yes, with the exceptions by name."""
    results = result["checks"].get(column)
    if results is None:
        minor = result["spark"].rpartition(".")[0]
        has_package = any(column.lower() in jar for each in SPARKS if each.minor == minor for jar in each.jars)
        return "not run" if has_package or column not in TABLE_FORMATS else "no package"
    names = {kind: [name for name, result in results.items() if result.startswith(kind)] for kind in ("yes", "not run")}
    without = [name for name in results if name not in names["yes"] and name not in names["not run"]]
    if len(names["not run"]) == len(results):
        return "not run"
    said = ["yes" if names["yes"] else "no"]
    said += [f"without {'; '.join(without)}"] if without and names["yes"] else []
    said += [f"not run: {'; '.join(names['not run'])}"] if names["not run"] else []
    return ", ".join(said)


def page_with(results: Sequence[dict[str, Any]], page: str) -> str:
    """The page with the table of these results in place of the one that it has."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def write_table() -> int:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page_with(results, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Check Penstock with each supported version of Spark.")
    parser.add_argument("cells", nargs="*", metavar="CELL", help="such as 4.2.0/3.12; default: all")
    parser.add_argument("--short", action="store_true", help=f"only a few checks of {', '.join(SHORT)}")
    parser.add_argument("--record", action="store_true", help="put the results into the repository")
    parser.add_argument("--table", action="store_true", help="only write the table of the kept results into the page")
    given = parser.parse_args()
    if given.table:
        return write_table()
    if given.short and given.record:
        parser.error("--short runs a few checks only: its results are not kept")
    wanted = [*given.cells, *(SHORT if given.short and not given.cells else ())]
    cells = [cell for cell in all_cells() if not wanted or str(cell) in wanted]
    if unknown := set(wanted) - set(map(str, cells)):
        parser.error(f"there is no cell {', '.join(sorted(unknown))}; there are {', '.join(map(str, all_cells()))}")
    status = run_cells(cells, RESULTS if given.record else CACHE / "results.json", short=given.short)
    return write_table() or status if given.record else status


if __name__ == "__main__":
    sys.exit(main())
