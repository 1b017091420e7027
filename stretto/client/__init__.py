"""The Python client: ``stretto.connect([...])``, sync and async.

One background thread per client owns the sockets; callers hand it work and wait for results. It needs one
reachable address of its bootstrap list: any worker tells who leads what.
"""

from stretto.client.acks import Ack
from stretto.client.api import AsyncClient, Client, connect, connect_async
from stretto.client.depot import DepotAppender
from stretto.client.producer import Producer
from stretto.client.pstate import PStateReader
from stretto.client.reader import Reader, Record

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
