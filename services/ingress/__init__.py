"""The OpenAI-compatible edge: validates, routes, publishes, waits, answers or streams."""
