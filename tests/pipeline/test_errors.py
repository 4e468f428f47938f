"""What Spark raises, as one sentence."""

from __future__ import annotations

import pytest

from penstock.pipeline.errors import one_sentence

PROXY = """Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. \
Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/x/utils.py", line 163, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
{raised}

"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to plan: rocketmq: no topic 'x' in /data  SQLSTATE: 38000",
            "no topic 'x' in /data",
        ),
        (PROXY.format(raised="penstock.errors.BadStore: /lake: a file is gone"), "/lake: a file is gone"),
        (PROXY.format(raised="RuntimeError: the disk: is full"), "Spark says: the disk: is full"),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] There is no `x`. SQLSTATE: 42703; line 1 pos 1;\n'Filter x\n+- Scan",
            "Spark says: There is no `x`.",
        ),
    ],
)
def test_what_spark_raises_is_one_sentence(text: str, expected: str) -> None:
    assert one_sentence(text) == expected
