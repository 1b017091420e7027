"""Watches: what a process follows in the metastore, read again after every change.

Each module follows one kind of thing over one session. Start with :mod:`~stretto.zk.watches.znode`, the watch
of one znode, on which most others rest.
"""
