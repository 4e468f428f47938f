"""The data pipeline on Spark: a data source and sink for RocketMQ stores and clusters, and jobs on top of them.

No package below this one imports Spark. Code that touches bytes runs in Spark's Python workers, on the store's kernels.
"""
