"""The Cluster UI and the REST interface: a program of its own, which asks the cluster as any client does.

It may import the client, control and snapshots, and nothing of the daemons that it asks. Start with
:mod:`~stretto.ui.server`; the handlers are in :mod:`~stretto.ui.api`, the pages in ``static/``.
"""

if __name__ == "ui":
    raise ImportError("this folder installs as stretto.ui; write 'import stretto.ui'")
