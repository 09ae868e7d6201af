"""The workers of one pool: take tasks off lanes, call models, publish what came of it."""
