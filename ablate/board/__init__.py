"""A page on 127.0.0.1 that shows studies while they train, and grows.

`server.Server` answers browsers that have its token (`access`); `watch.Watch` reads the database
when a page asks (`reading`, `growth`) and `page` renders it; `reports` makes full reports. `beside`
starts a board in a process of its own, which ends with a run. Nothing here writes the database.
"""
