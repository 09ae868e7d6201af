"""The running parts: pure policy in `core`, edges in `adapters`, one folder for each service."""
