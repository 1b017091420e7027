"""Both sides of a transfer of state, as pure machines: no clock, files, threads or sockets.

``fetch`` is the follower's side and ``serve`` the leader's, in one shape: ``step(event, now)`` returns
effects, ``next_deadline()`` says when to step a Tick at the latest, ``events`` and ``effects`` are closed
unions. What both know of images is in ``blocks``. A worker drives them (:mod:`stretto.catchup.receiving`,
:mod:`stretto.catchup.serving`) and so does the simulator, so both run the same code.

They import the vocabulary, the messages, the core's guards and ``blocks``; neither imports the other, nor a
driver. ``ruff.toml`` bans what would make them impure. Open ``fetch`` first: it is the side that asks.
"""
