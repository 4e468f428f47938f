"""Makes the pictures in the docs: a query on Spark, a run of `penstock pipeline usage`, and the page that it writes.

    .venv/bin/python tools/make_pictures.py [query] [usage] [page]

All of them unless some are named. Needs Spark, and Chromium for the page. Twelve days of an imagined shop are put into
a store in a temporary folder, and everything that is shown was really run there, in a terminal of 110 columns:

    query   the statements below, with what they print          docs/images/query.svg
    usage   the command                                         docs/images/usage-run.svg
    page    what Chromium shows of the page that it wrote       docs/images/usage-page.png
"""

from __future__ import annotations

import io
import math
import os
import pty
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from penstock.store import Message, MessageStore, Settings

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
COLUMNS = 110
DAYS = 12
HOUR_MS = 3_600_000
TOPICS = {"orders": (420, 700), "payments": (260, 350), "shipments": (150, 1200), "clicks": (900, 140)}
"""Messages in a busy hour, and the usual size of a body."""

QUERY = (
    'orders = spark.read.format("rocketmq").option("subscribe", "orders").load("store")',
    'orders.createOrReplaceTempView("orders")',
    """spark.sql('''
SELECT tags, count(*) AS messages, sum(store_size) AS bytes, max(store_timestamp) AS newest
FROM orders GROUP BY tags ORDER BY bytes DESC
''').show(truncate=False)""",
    'one = spark.read.format("rocketmq").options(subscribe="orders", keys="orders-284-100").load("store")',
    'one.select("queue_id", "queue_offset", "tags", "store_timestamp", "store_size").show(truncate=False)',
)
TYPED = """
import sys
from penstock.pipeline.session import start_session
spark = start_session("query", "local[2]")
for statement in sys.argv[1:]:
    for number, line in enumerate(statement.splitlines()):
        print("..." if number else ">>>", line, flush=True)
    exec(statement)
spark.stop()
"""
"""Types statements, as a person would do in a shell of Python; what they print comes right after them."""


def fill(path: Path) -> None:
    """Twelve days of traffic that swells by day and grows by week."""
    dice = random.Random(7)
    start = 1_794_528_000_000 - DAYS * 24 * HOUR_MS
    now = [start]
    with MessageStore.open(path, Settings.dev(mapped_file_size_commit_log=64 << 20), clock=lambda: now[0]) as store:
        for hour in range(DAYS * 24):
            busy = (1.2 + math.sin((hour % 24 - 8) / 24 * 2 * math.pi)) / 2.2 * (1 + hour / 24 / DAYS)
            for topic, (messages, size) in TOPICS.items():
                for number in range(int(messages * busy)):
                    now[0] = start + hour * HOUR_MS + number * HOUR_MS // int(messages * busy + 1)
                    body = dice.randbytes(max(int(dice.gauss(size, size / 4)), 20))
                    tag = dice.choice(("web", "app", "partner"))
                    key = f"{topic}-{hour}-{number}"
                    store.put(Message(topic, body, keys=(key,), tags=tag, queue_id=number % 4))


def run(command: list[str], folder: Path) -> str:
    """What a command prints into a terminal."""
    shown = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        shown.extend(data)
        return data

    os.environ |= {"COLUMNS": str(COLUMNS), "LINES": "60", "TERM": "xterm-256color"}
    os.chdir(folder)
    if status := pty.spawn(command, read):
        sys.exit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return shown.decode()


def last_screen(text: str) -> str:
    """Without the states of a progress bar that were written over."""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        for part in line.split("\x1b[2K")[-1:]:
            lines.append(part.rsplit("\r", 1)[-1])
    return "\n".join(line for line in lines if line.strip())


def draw(name: str, title: str, text: Text) -> None:
    """What was seen in a terminal, as a picture."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(text)
    picture = console.export_svg(title=title)
    picture = re.sub(r"@font-face *{.*?}", "", picture, flags=re.DOTALL)  # no network
    (IMAGES / name).write_text(picture, encoding="utf-8")


def draw_query(folder: Path) -> None:
    order = [sys.executable, "-c", TYPED, *QUERY]
    shown = subprocess.run(order, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    draw("query.svg", "A query on Spark over a store's files", Text(shown.strip()))


def draw_usage(folder: Path) -> None:
    words = ["penstock", "pipeline", "usage", "--store", "store", "--html", "usage.html"]
    shown = run([str(Path(sys.executable).with_name(words[0])), *words[1:]], folder)
    typed = Text(f"$ {' '.join(words)}\n", style="bold")
    draw("usage-run.svg", "penstock pipeline usage", typed + Text.from_ansi(last_screen(shown)))


def draw_page(folder: Path) -> None:
    browser = shutil.which("chromium") or sys.exit("there is no Chromium here, so there is no picture of the page")
    run([str(Path(sys.executable).with_name("penstock")), "store", "usage", "store", "--html", "usage.html"], folder)
    flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1020"]
    show = [browser, *flags, f"--screenshot={IMAGES / 'usage-page.png'}", f"file://{folder / 'usage.html'}"]
    subprocess.run(show, check=True, timeout=120, stderr=subprocess.DEVNULL)


PICTURES = {"query": draw_query, "usage": draw_usage, "page": draw_page}


def main(names: list[str]) -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder / "store")
        for name in names or PICTURES:
            PICTURES[name](folder)


if __name__ == "__main__":
    main(sys.argv[1:])
