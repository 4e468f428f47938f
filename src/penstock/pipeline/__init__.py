"""The data pipeline on Spark: a data source and sink over RocketMQ stores and clusters, and the jobs on top of it.

Nothing below this package knows Spark. What touches bytes runs in Spark's Python workers on the store's own kernels.
"""
