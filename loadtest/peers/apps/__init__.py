"""The peers' own programs. They run in an environment of their own and import nothing of the project.

Each has three faces: a worker (started by the peer's own command), `client` (reads markers from stdin, sends
a task for each, prints the marker once the send was acknowledged) and `outcomes` (prints the markers that
have a result).
"""
