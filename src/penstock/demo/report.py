"""What the demo leaves behind: one page with what each step showed, and charts. It needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from penstock import __version__
from penstock.demo.scene import Done, Scene, State, verdict
from penstock.pipeline.charts import document, lines, table

_BUCKETS: Final = 120


def page(scene: Scene, steps: Sequence[Done], seconds: float) -> str:
    """The page as HTML."""
    failed = [step for step in steps if step.state is State.FAILED]
    return document(
        "Penstock demo",
        [
            f"<h1>Penstock {escape(__version__)}: a broker was killed, and nothing was lost</h1>"
            if not failed
            else f"<h1>Penstock {escape(__version__)}: the demo did not come to its end</h1>",
            f"<p>{escape(verdict(steps))}. It took {seconds:.1f} s, with {2 * scene.orders:,} messages and more.</p>",
            _steps(steps),
            lines("Messages over time, the broker away where it is grey", _over_time(scene), scene.away),
            _streamed(scene),
            *_usage(scene),
        ],
    )


def _steps(steps: Sequence[Done]) -> str:
    rows = [(step.title, step.state.value, f"{step.seconds:.1f} s", step.says) for step in steps]
    return table(("step", "", "took", "what was seen"), rows, right=("took",))


def _over_time(scene: Scene) -> dict[str, list[tuple[float, float]]]:
    """How many there were of each kind by when."""
    moments = {name: sorted(some) for name, some in scene.ledger.moments.items() if some}
    return {name: _thinned([(at, number) for number, at in enumerate(some, 1)]) for name, some in moments.items()}


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    every = max(len(points) // _BUCKETS, 1)
    return [(points[0][0], 0.0), *points[::every], points[-1]]


def _streamed(scene: Scene) -> str:
    if not scene.streamed:
        return ""
    counted = table(("topic", "tag", "messages"), scene.streamed, right=("messages",))
    return f"<h2>What the streaming query put into a table</h2>{counted}"


def _usage(scene: Scene) -> list[str]:
    if scene.usage is None:
        return []
    from penstock.pipeline.jobs.usage_page import charts, disks

    return ["<h2>Who fills the disk</h2>", disks(scene.usage), *charts(scene.usage)]
