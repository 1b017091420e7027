"""The supervisor of a node: the program that starts the workers placed on its machine and keeps them running.

It may import whatever a worker is made of, and nothing imports it but the command line and local clusters.
Start with :mod:`~stretto.supervisor.process`, which compares what should run with what runs;
:mod:`~stretto.supervisor.desired` says what should, :mod:`~stretto.supervisor.children` what does.
"""

if __name__ == "supervisor":
    raise ImportError("this folder installs as stretto.supervisor; write 'import stretto.supervisor'")
