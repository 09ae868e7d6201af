"""What a command ends with that is no fault of its own: said in one line on stderr."""

from __future__ import annotations


class UpError(Exception):
    """The fleet cannot start; the text says why and what to do."""
