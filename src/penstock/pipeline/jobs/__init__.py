"""Jobs over stores and clusters: functions that take a SparkSession and return a DataFrame or a typed report.

They run the same on a laptop and on a cluster; `penstock pipeline JOB` is their command line.
"""
