"""Rows in PostgreSQL (a fleet) or SQLite (embedded): one schema, its migrations, and the stores on it."""
