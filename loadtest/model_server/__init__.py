"""A model server of our own: a real HTTP process that speaks the OpenAI API and breaks as a request asks.

Tests use it to provoke faults, benchmarks as a backend of known cost. `http_edge` moves bytes, `script` says
what a request may ask for, `words` and `answers` make content, `events` frames a stream, `play` sends it
at the pace of `pace`, `attempts` keeps the log, `server` ties them together, `process` starts it for tests.
"""
