"""Pure policy: no I/O, no clock, no randomness; everything it needs is passed in."""
