"""The machinery of settings, for every program: nothing here knows a particular setting.

properties        Java's .properties text, both ways
table             a table of settings: names, types, defaults, bounds; reads texts and checks values
ignored           RocketMQ's names that are accepted and have no effect
reference_page    the reference pages in docs/, from the tables
"""
