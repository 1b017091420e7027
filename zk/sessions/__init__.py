"""Sessions with ZooKeeper: opened, lost, followed by the next one, and what an answer means.

They know no znode. Start with :mod:`~stretto.zk.sessions.session`; :mod:`~stretto.zk.sessions.succession`
keeps one session after the other.
"""
