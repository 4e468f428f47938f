"""The whole of it in two minutes: a broker is killed while a shop sells, nothing is lost, and Spark reads it.

    broker_process.py  `penstock serve` as a process that can be killed
    shop.py            what is sent, what was acknowledged, and what two groups saw
    steps.py           the steps, each of which checks what came of it
    spark_steps.py     those that need Spark
    run.py             one after the other, with their times
    report.py          the page that is left behind

`penstock demo` is its command.
"""

from penstock.demo.run import DemoResult, Watcher, run
from penstock.demo.shop import StepResult, StepState

__all__ = ["DemoResult", "StepResult", "StepState", "Watcher", "run"]
