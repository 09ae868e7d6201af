"""What a task weighs before anybody ran it, in weighted tokens: what tenants are compared by.

A linear cost as in VTC (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024), whose weights
were the prices of the day, 1 for an input and 2 for an output token. Providers now ask about four times as
much for output; an output token is the unit here.
"""

from __future__ import annotations

INPUT_WEIGHT = 0.25
OUTPUT_WEIGHT = 1.0
USUAL_OUTPUT_TOKENS = 256  # of an answer whose length the caller does not limit further


def expected_output_tokens(limit: int | None) -> int:
    """A caller's limit is a bound and no forecast: it counts where it is below what is usual."""
    return USUAL_OUTPUT_TOKENS if limit is None else min(limit, USUAL_OUTPUT_TOKENS)


def weighted_tokens(input_tokens: int, output_limit: int | None) -> float:
    """Weighted tokens of a task as predicted."""
    return INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * expected_output_tokens(output_limit)


def used_tokens(input_tokens: int, output_tokens: int) -> float:
    """Weighted tokens of a try as counted."""
    return INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * output_tokens
