"""The command line: one module per verb or group of verbs. Data goes to stdout, everything else to stderr."""
