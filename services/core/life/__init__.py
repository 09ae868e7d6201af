"""The life of a task as data: who may write which record when, and what each record does to the rows.

`table` is the law, `rows` what is stored, `fold` one record over one task's rows, `batch` many records over
many tasks', `log_time` the time that a log partition has reached. Nothing here does I/O or asks a clock.
"""
