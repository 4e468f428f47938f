"""Jobs over stores and clusters: functions that take a SparkSession and return a DataFrame or a typed report.

A job runs the same on a laptop and on a Spark cluster. `penstock pipeline JOB` runs it from the command line.
"""
