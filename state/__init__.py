"""The applied state of a task group: what is visible, one LMDB file for each task.

Workers, snapshots, scans and Spark read it from here; it imports the log's entries and the rows of PStates,
and none of its users. Start with :mod:`~stretto.state.applied`, the state of a group, then
:mod:`~stretto.state.task`.
"""

if __name__ == "state":
    raise ImportError("this folder installs as stretto.state; write 'import stretto.state'")
