"""Load, faults and comparisons, measured on real processes."""
