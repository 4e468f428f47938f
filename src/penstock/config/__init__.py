"""Parsing, checking and documenting of settings, for every program. Each program defines its own table of settings.

properties        reads and writes Java's .properties text
parser            a table of settings: names, types, defaults, bounds; parses and checks values
ignored           RocketMQ's settings that are accepted and have no effect
reference_page    generates the reference pages in docs/ from the tables
"""
