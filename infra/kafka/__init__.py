"""Apache Kafka 4.x (KRaft) from its Maven jars, without Docker: jars.py fetches, settings.py says how a node
is configured, node.py runs one."""
