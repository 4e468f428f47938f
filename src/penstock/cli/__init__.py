"""The command line: one file per verb or group of verbs. Data goes to stdout, everything else to stderr."""
