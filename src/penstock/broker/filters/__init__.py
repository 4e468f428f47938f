"""Filters by SQL92: an expression over a message's properties.

grammar     what an expression looks like
values      how values are compared, with SQL's third truth value
sql92       an expression, compiled once, asked for each record
"""
