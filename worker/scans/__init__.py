"""Scans: all of a worker's state, read as of one apply offset by a process of its own.

| module | holds |
|---|---|
| ``protocol`` | what a worker and its scan process say to each other |
| ``pins`` | what the scan process keeps: files, a transaction for each task of a pin, until when |
| ``child`` | the scan process: answers readers over its own socket, and its worker |
| ``process`` | that process as its worker sees it: started, asked, ended |
| ``moments`` | which pins the tasks of one query read under, agreed on in ZooKeeper |
| ``scans`` | how a group is pinned: by the rules for reads, between two batches that are applied |

The process is started by the first pin and ends by itself when there has been none for a while. It reads the
files of the tasks as executors do. So reading millions of rows takes nothing from the loop that replicates:
neither its interpreter nor its socket.

It may import ``stretto.worker.reads``, ``stretto.worker.replica`` and what is below them; of the worker
itself it knows ``Host``.
"""
