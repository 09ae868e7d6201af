"""The bookkeeper: turns the one log into rows, and sends parked tasks out again."""
