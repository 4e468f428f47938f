"""A process of the console's jobs: `python -m penstock.cli.console_jobs`, which the console starts.

It runs verbs as the command `penstock` does, and stays for the next one if the verb has left a Spark session.
"""

from __future__ import annotations

import gc
import sys

from penstock.cli.main import main
from penstock.console.job_worker import serve_jobs


class VerbRunner:
    """Runs verbs in this process."""

    def run(self, arguments: list[str]) -> int:
        try:
            return main(arguments)
        finally:
            gc.collect()  # closes maps of files that are deleted before the next job

    def stays(self) -> bool:
        if "pyspark" not in sys.modules:  # importing it takes long
            return False
        from penstock.pipeline.session import has_living_session

        return has_living_session()

    def close(self) -> None:
        if self.stays():
            from pyspark.sql import SparkSession

            session = SparkSession.getActiveSession()
            if session is not None:
                session.stop()


if __name__ == "__main__":
    serve_jobs(VerbRunner())
