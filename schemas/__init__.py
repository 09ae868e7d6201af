"""The wire contract: messages, headers, topics and failure kinds. Imports nothing of the services."""
