"""The command line: everything on one machine, topics, load tests."""
