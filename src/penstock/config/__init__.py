"""Settings for every program: parsing, checking and documenting. No module here knows a particular setting.

properties        reads and writes Java's .properties text
table             a table of settings: names, types, defaults, bounds; parses and checks values
ignored           RocketMQ's settings that are accepted and have no effect
reference_page    generates the reference pages in docs/ from the tables
"""
