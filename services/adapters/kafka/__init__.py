"""Kafka: brokers traits, publishers, sources and topics, by aiokafka."""
