"""Everything that crosses a socket between processes of a cluster and its clients, as data.

Messages are tagged structs, with bodies of bytes beside them. Calls of the control plane are in
:mod:`stretto.control`; how all of it travels is in :mod:`stretto.network`. Start with
:mod:`~stretto.wire.messages`.
"""
