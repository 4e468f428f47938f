"""The demo of `penstock demo`: it kills a broker under load, verifies that no acked message was lost, and queries the
store with Spark, all in two minutes. And the drill of `penstock cluster drill`: it harms an elected master.

    shop.py         the broker process, the producer, the consumers, and the ledger of acked messages
    steps.py        the steps; each checks its own result
    spark_steps.py  the steps that need Spark
    run.py          runs the steps and writes the report
    drill.py        strikes a master under load, counts what was acked, and writes its report
    drill_clusters.py  the cluster that a drill makes, and the one that it is given
"""

from penstock.demo.run import DemoResult, Watcher, run
from penstock.demo.shop import StepResult, StepState

__all__ = ["DemoResult", "StepResult", "StepState", "Watcher", "run"]
