"""Model backends behind ports.ModelClient: OpenAI-compatible servers over HTTP, and simulated ones."""
