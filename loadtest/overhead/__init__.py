"""What the path costs: a direct call, a bare echo over the same broker, and the whole path, in one run."""
