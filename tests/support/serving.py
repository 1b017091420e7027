"""A daemon's service on a thread of this process, over a real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stretto.network.loop import Loop
from stretto.network.routing import Network
from stretto.network.service import Handler, Service


@contextmanager
def serving(handle: Handler) -> Iterator[tuple[Network, str]]:
    with service(handle) as served:
        network = Network([served.address], None)
        try:
            yield network, served.address
        finally:
            network.close()


@contextmanager
def service(handle: Handler) -> Iterator[Service]:
    loop = Loop()
    service = Service(loop, address="127.0.0.1:0", cluster="c", name="the conductor", key=None, handle=handle)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield service
    finally:
        loop.call_soon(loop.stop)
        thread.join()
        service.close()
        loop.close()
