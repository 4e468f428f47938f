"""The demo of `penstock demo`: it kills a broker under load, verifies that no acked message was lost, and queries the
store with Spark, all in two minutes.

    shop.py         the broker process, the producer, the consumers, and the ledger of acked messages
    steps.py        the steps; each checks its own result
    spark_steps.py  the steps that need Spark
    run.py          runs the steps and writes the report
"""

from penstock.demo.run import DemoResult, Watcher, run
from penstock.demo.shop import StepResult, StepState

__all__ = ["DemoResult", "StepResult", "StepState", "Watcher", "run"]
