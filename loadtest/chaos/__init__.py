"""A seeded chaos run: faults of every kind under load on three Kafka nodes, and an independent check.

`schedule` draws what happens when, `fleet` starts the processes, `faults` strikes and heals them, `load` is
the clients; `log`, `rows` and `edge_log` are what a plain Kafka consumer, the database and the ingress say;
`check` has the law and shares no code with the services; `report` has the figures, `run` plays the seeds.
"""
