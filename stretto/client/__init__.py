"""The Python client: ``stretto.connect([...])``, sync and async.

One background thread per client owns the sockets; callers hand it work and wait for results. It needs one
reachable address of its bootstrap list: any worker reports which worker leads each group.
"""

from stretto.client.api import AsyncClient, Client, connect, connect_async
from stretto.client.appending.acks import Ack
from stretto.client.appending.depot import DepotAppender
from stretto.client.appending.producer import Producer
from stretto.client.reading.depot import Reader, Record
from stretto.client.reading.pstate import PStateReader

__all__ = [
    "Ack",
    "AsyncClient",
    "Client",
    "DepotAppender",
    "PStateReader",
    "Producer",
    "Reader",
    "Record",
    "connect",
    "connect_async",
]
