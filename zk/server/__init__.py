"""A real ZooKeeper for development and tests, which ends with the process that started it, however that ends.

Nothing of the metastore's clients is imported here. Start with :mod:`~stretto.zk.server.embedded`.
"""
