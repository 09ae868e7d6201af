"""Edges: Kafka, model backends, the database, blobs, telemetry. Library errors end here."""
