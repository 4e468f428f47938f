"""SQL over stores: by DuckDB in this process, or by Spark, with the same views. Needs the extra `sql`, or `spark`.

`views` has the names and tables that both share. `duckdb_engine` and `spark_engine` run queries, and `results` writes
their rows as table, CSV, JSON lines or Parquet.
"""
