"""Durable tasks end to end: preloaded lanes, one worker, to the last ledger row."""
