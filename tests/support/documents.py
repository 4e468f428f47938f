"""The documents: their pages, links and fenced blocks, the test that runs each block, and a reader who types commands.

A block's kind is the word behind its fence. A block without a kind, and one of the kind `text`, is only looked at: a
drawing, what a command prints, the synopsis of a command. Every other block is run by a test, which `RUN_BY` names by
page and kind, or carries its excuse in a comment on the line before it:

    <!-- not run: needs Docker -->

An excuse begins with one of `EXCUSES`: something that the machines of the tests do not have.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from textwrap import dedent
from typing import Final, NamedTuple, Self

from penstock.cli.main import main
from support import ROOT

DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh.md", "CHANGELOG.md", "SECURITY.md", "deploy/README.md")),
    *sorted(DOCS.rglob("*.md")),
]


class Link(NamedTuple):
    """A link within the repository."""

    path: str
    anchor: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """Without fenced blocks and code within a line, where brackets are no links and `#` is no heading."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.M | re.S))


def links_of(text: str) -> list[Link]:
    found = re.findall(r"\]\(\s*([^)\s#]*)(?:#([^)\s]*))?\s*\)", without_code(text))
    return [Link(path, anchor) for path, anchor in found if "://" not in path]


def anchors_of(text: str) -> set[str]:
    """As sites make them of headings: lower case, without punctuation, words joined by dashes."""
    fenced = re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", fenced, re.M)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s", "-", heading) for heading in plain}


ONLY_LOOKED_AT: Final = ("", "text")
EXCUSES: Final = (
    "needs Docker",
    "needs Kubernetes",
    "needs YARN",
    "needs root",
    "needs packages from an index",
    "takes minutes to hours",
)
PAGE_BY_PAGE: Final = "test_code_blocks::test_the_blocks_of_a_page_run_as_printed"
NEWCOMER: Final = "test_clean_clone::test_a_newcomer_sees_what_the_page_promises"
SPARK_PAGE: Final = "test_how_to::test_the_blocks_of_a_page_run_one_after_the_other"
SPARK_REFERENCE: Final = "test_how_to::test_the_examples_of_a_reference_run"
LAKES_PAGE: Final = "test_how_to::test_the_commands_of_the_page_about_lakes_run_one_after_the_other"
LAKE_PAGE: Final = "test_lake::test_the_page_runs_as_printed"
CLUSTER_PAGE: Final = "test_cluster_pages::test_the_commands_of_a_page_run_on_a_cluster"
REPLICATE_PAGE: Final = "test_replicate_page::test_a_pair_loses_its_master_and_gets_it_back_as_the_page_says"
WORKED_EXAMPLES: Final = "test_format_pages::test_the_code_reads_an_example_as_the_table_beside_it_says"
TRANSLATED: Final = "test_translations::test_a_page_in_chinese_is_not_behind"
SETTING_FILES: Final = "test_setting_blocks::test_a_file_of_settings_on_a_page_is_one_that_penstock_takes"
FAILOVER_PAGE: Final = "test_failover_page::test_three_brokers_elect_a_master_as_the_page_says"
FAILOVER_WALK: Final = "test_failover_page::test_a_reader_kills_a_master_on_one_machine_as_the_page_says"
RUN_BY: Final[dict[tuple[str, str], str]] = {
    ("README.md", "sh"): NEWCOMER,
    ("README.md", "python"): NEWCOMER,
    ("README.md", "py"): SPARK_REFERENCE,
    ("docs/quickstart.md", "sh"): NEWCOMER,
    ("docs/quickstart.md", "python"): NEWCOMER,
    ("docs/quickstart.md", "py"): SPARK_REFERENCE,
    ("docs/explanation/security.md", "yaml"): SETTING_FILES,
    ("docs/how-to/cluster.md", "bash"): CLUSTER_PAGE,
    ("docs/how-to/connect.md", "java"): "test_connect_page::test_the_java_class_sends_and_consumes",
    ("docs/how-to/connect.md", "py"): "test_connect_page::test_the_c_plus_plus_client_sends_and_consumes",
    ("docs/how-to/connect.md", "js"): "test_connect_page::test_the_node_client_sends_and_consumes",
    ("docs/how-to/connect.md", "sh"): "test_connect_page::test_the_lines_for_mqadmin_do_what_they_say",
    ("docs/how-to/console.md", "yaml"): SETTING_FILES,
    ("docs/how-to/export-to-a-lake.md", "py"): LAKES_PAGE,
    ("docs/how-to/export-to-a-lake.md", "sh"): LAKES_PAGE,
    ("docs/how-to/external-dispatch.md", "bash"): "test_dispatch::test_broker_and_job_of_the_page_work_together",
    ("docs/how-to/external-dispatch.md", "py"): "test_dispatch::test_the_how_to_page_runs",
    ("docs/how-to/external-dispatch.md", "sh"): "test_dispatch::test_the_how_to_page_runs",
    ("docs/how-to/find-who-fills-the-disk.md", "bash"): CLUSTER_PAGE,
    ("docs/how-to/lake.md", "py"): LAKE_PAGE,
    ("docs/how-to/lake.md", "sh"): LAKE_PAGE,
    ("docs/how-to/lake.md", "yaml"): LAKE_PAGE,
    ("docs/how-to/from-kafka.md", "py"): SPARK_PAGE,
    ("docs/how-to/programs.md", "py"): "test_programs_page::test_the_programs_of_the_page_are_those_that_are_run",
    ("docs/how-to/query-with-spark.md", "py"): SPARK_PAGE,
    ("docs/how-to/query-with-sql.md", "bash"): "test_sql_both_ways::test_the_command_of_the_page_runs_on_spark",
    ("docs/how-to/failover.md", "ini"): FAILOVER_PAGE,
    ("docs/how-to/failover.md", "sh"): FAILOVER_PAGE,
    ("docs/how-to/failover.md", "bash"): FAILOVER_WALK,
    ("docs/how-to/replicate.md", "ini"): REPLICATE_PAGE,
    ("docs/how-to/replicate.md", "sh"): REPLICATE_PAGE,
    ("docs/how-to/spark-recipes.md", "py"): SPARK_PAGE,
    ("docs/how-to/systemd.md", "ini"): "test_systemd_unit::test_the_changes_on_the_page_serve_too",
    ("docs/how-to/tail-into-a-table.md", "py"): SPARK_PAGE,
    ("docs/how-to/watch.md", "yaml"): SETTING_FILES,
    ("docs/how-to/write-with-spark.md", "py"): SPARK_PAGE,
    ("docs/reference/spark.md", "py"): SPARK_REFERENCE,
    ("docs/reference/spark-sink.md", "py"): SPARK_REFERENCE,
}
"""Beside these: `hex` is run by the worked examples, `python` and `sh` page by page. The blocks of a translated page
are not run: a test compares them with those of the page that it translates."""
ANY_PAGE: Final = {"hex": WORKED_EXAMPLES, "python": PAGE_BY_PAGE, "sh": PAGE_BY_PAGE}
_FENCED = re.compile(
    r"^(?:(?P<margin> *)<!-- not run: (?P<excuse>[^\n]*?) -->\n)?(?P<indent> *)```(?P<kind>\S*)\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    kind: str
    text: str
    excuse: str

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.kind not in ONLY_LOOKED_AT and not self.excuse

    @property
    def run_by(self) -> str:
        """The test that runs it, or compares it with one that is run, as file::name; empty if none does."""
        if self.page == ROOT / "README.zh.md" or self.page.is_relative_to(DOCS / "zh"):
            return TRANSLATED
        return RUN_BY.get((name_of(self.page), self.kind)) or ANY_PAGE.get(self.kind, "")


def blocks_of(page: Path, text: str | None = None) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8") if text is None else text
    found = []
    for match in _FENCED.finditer(text):
        line = text.count("\n", 0, match.start("indent")) + 1
        found.append(Block(page, line, match["kind"], dedent(match["text"]), match["excuse"] or ""))
    return found


def to_run(page: str, *kinds: str) -> list[Block]:
    """The blocks of these kinds on a page, named from the root on, that are to be run, in order."""
    return [block for block in blocks_of(ROOT / page) if block.is_run and block.kind in kinds]


BLOCKS: Final = [block for page in PAGES for block in blocks_of(page)]
_SERVE: Final = ("serve", "namesrv", "console")
_UP: Final = re.compile(r"Stop with|listens at|Console of")
_STOP_S: Final = 40
_DEFAULTS: Final = {
    "serve": {"--listen": "127.0.0.1:10911", "--namesrv": "127.0.0.1:9876", "--console": "off", "--profile": "dev"},
    "namesrv": {"--listen": "127.0.0.1:9876"},
    "console": {"--listen": "127.0.0.1:8080"},
}
"""What is given where the page leaves it to the default: the same, but for this reader alone, and small files."""


class Reader:
    """Types commands. Use it in a `with` block, in the folder that is the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loopback = f"127.{os.getpid() >> 8 & 127 or 1}.{os.getpid() & 255}."
        self._serving: dict[str, subprocess.Popen[str]] = {}

    def here(self, text: str, home: Path | None = None) -> str:
        """The text, with addresses and folders of this machine."""
        text = re.sub(r"\b10\.0\.0\.\d+/\d+", "127.0.0.0/8", text)
        text = text.replace("10.0.0.", self._loopback)
        text = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)(?=:\d)", f"{self._loopback}99", text)
        return re.sub(r"(?<![\w./])/(?=(srv|stores|data)/)", f"{home or self.folder}/", text)

    def write(self, file: str) -> None:
        """Writes a file of settings where its first line says."""
        found = re.match(r"# (\S+): (\S+)", file)
        assert found is not None, "the first line says on which machine it lies, and its name"
        home = self.folder / found[1]
        home.mkdir(exist_ok=True)
        (home / found[2]).write_text(self.here(file), encoding="utf-8")

    def type(self, line: str) -> None:
        """Returns when the command has ended well, or serves."""
        words = shlex.split(line, comments=True)
        if words[:1] != ["penstock"]:
            subprocess.run(["bash", "-c", line], check=True, timeout=60, cwd=self.folder)
        elif words[1] in _SERVE and "--print-config" not in words:
            self._serve(words[1:])
        else:
            assert main([self.here(word) for word in words[1:]]) == 0, line

    def _serve(self, words: list[str]) -> None:
        for name, value in _DEFAULTS[words[0]].items():
            if name not in words:
                words += [name, value]
        machine = self.folder / words[words.index("--listen") + 1].partition(":")[0]
        home = machine if machine.is_dir() else self.folder
        words = [self.here(word, home) for word in words]
        store = str(home / (words[words.index("--store") + 1] if "--store" in words else words[0]))
        listen = words[words.index("--listen") + 1]
        for other, process in list(self._serving.items()):
            if other == store or (listen in process.args and not listen.endswith(":0")):
                self._stop(self._serving.pop(other))
        command = [sys.executable, "-m", "penstock.cli.main", *words]
        with (self.folder / "said.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=home)
        self._serving[store] = process
        assert process.stdout is not None
        printed = ""
        while not _UP.search(printed):
            line = process.stdout.readline()
            assert line, f"{' '.join(words)}\n{printed}\n{(self.folder / 'said.log').read_text(encoding='utf-8')}"
            printed += line
        if words[0] == "console":
            (link,) = re.findall(r"http://\S+", printed)
            with urllib.request.urlopen(link, timeout=_STOP_S) as page:  # loopback
                assert page.status == 200

    @staticmethod
    def _stop(process: subprocess.Popen[str]) -> None:
        process.terminate()
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(_STOP_S) == 0, process.args

    def lose(self, store: Path) -> None:
        """The machine that serves a store has a power cut."""
        process = self._serving.pop(str(store))
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        serving = list(reversed(self._serving.values()))  # brokers leave before their name server
        self._serving.clear()
        try:
            for process in serving:
                if process.poll() is None:
                    self._stop(process)
        finally:
            for process in serving:
                process.kill()
                process.wait()
