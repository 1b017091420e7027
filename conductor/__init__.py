"""The conductor: the program that plans where modules run and who leads, and carries the plans out.

It may import the metastore, control and the network; no worker needs it to elect, serve or fail over. Start
with :mod:`~stretto.conductor.process`; the planners are in :mod:`~stretto.conductor.planning`.
"""

if __name__ == "conductor":
    raise ImportError("this folder installs as stretto.conductor; write 'import stretto.conductor'")
