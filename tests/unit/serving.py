"""A daemon's service on a thread of this process, over a real socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stretto import admin
from stretto.client.network import Network
from stretto.loop import Loop
from stretto.service import Service


@contextmanager
def serving(handle: Callable[[admin.AnyCall, list[memoryview]], object]) -> Iterator[tuple[Network, str]]:
    loop = Loop()
    service = Service(loop, address="127.0.0.1:0", cluster="c", name="the conductor", key=None, handle=handle)
    thread = threading.Thread(target=loop.run)
    thread.start()
    network = Network([service.address], None)
    try:
        yield network, service.address
    finally:
        network.close()
        loop.call_soon(loop.stop)
        thread.join()
        service.close()
        loop.close()
