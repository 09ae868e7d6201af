"""A task of half an hour beside rebalances of its pool: it is tried once, whatever moves around it."""
