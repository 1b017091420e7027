"""The far horizon: how a follower that the leader's log does not reach takes the leader's state.

The follower asks and the leader answers, so that whatever is interrupted goes on where it stopped. In each
*round* every task's file is brought to a later image of the leader's: the leader copies the file beside its
writer, hashes it in fixed blocks, and the follower asks for the blocks that it has not. Images of a round are
of different offsets; at the end the follower takes the entries between the lowest and the highest of them
from the leader's log, and applies them as after a crash.

:mod:`~stretto.catchup.machines.fetch` is the follower's side and :mod:`~stretto.catchup.machines.serve` the
leader's, both without clock, files and sockets; a worker and the simulator drive them.
"""

if __name__ == "catchup":
    raise ImportError("this folder installs as stretto.catchup; write 'import stretto.catchup'")
