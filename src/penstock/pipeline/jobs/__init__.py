"""Jobs over stores and clusters: each a function that takes a SparkSession and gives a DataFrame or a typed report.

They run the same on a laptop and on a cluster; `penstock pipeline JOB` is their command line.
"""
