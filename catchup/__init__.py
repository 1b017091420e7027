"""The far horizon: how a follower that the leader's log does not reach takes the leader's state.

The follower asks and the leader answers, so that whatever is interrupted goes on where it stopped. In each
*round* every task's file is brought to a later image of the leader's: the leader copies the file beside its
writer, hashes it in fixed blocks, and the follower asks for the blocks that it has not. Images of a round are
of different offsets; at the end the follower takes the entries between the lowest and the highest of them
from the leader's log, and applies them as after a crash.

Here are both machines, without clock, files and sockets (:mod:`~stretto.catchup.machines`; the simulator runs
them too), and what drives them in a worker. Open ``machines`` first for what a transfer is; ``transfers``
for how a worker has them, and then by side:

* the follower's: ``receiving`` (the driver), ``staging`` (its files), ``install`` (how they become the
  replica's);
* the leader's: ``serving`` (the driver), ``images`` (its files), ``sender`` (a process that sends blocks),
  ``share`` (the allowance of a node);
* both: ``threads``, and ``hashing`` with its process, ``hasher``.

It imports the replog, the applied state and the network. It imports nothing of a worker: what it needs of one
is in ``hosts``.
"""

if __name__ == "catchup":
    raise ImportError("this folder installs as stretto.catchup; write 'import stretto.catchup'")
