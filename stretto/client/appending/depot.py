"""Appending values to a depot: each becomes a record, on the task that the depot's declaration chooses.

A :class:`~stretto.client.appending.producer.Producer` takes bytes and sends them to the task that is given.
This is the layer above it, for values: it encodes them as JSON and asks the depot's
:class:`~stretto.module.partition.Partitioner`, as the command line, the REST API and Spark do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from stretto import control
from stretto.client.appending.acks import Ack
from stretto.client.appending.producer import Producer
from stretto.client.operating.modules import find_depot
from stretto.errors import UsageError
from stretto.module.partition import Partitioner, record_of
from stretto.specs.modules import DepotSpec

if TYPE_CHECKING:
    from stretto.module.module import Depot

R = TypeVar("R")


class DepotAppender(Generic[R]):
    """Appends values to one depot. Safe to use from several threads.

    A value is a dataclass, a ``msgspec.Struct``, a dict, or whatever else JSON can say; ``bytes`` are a
    record as they are.
    """

    def __init__(self, producer: Producer, partitioner: Partitioner) -> None:
        self.producer = producer
        self._place = partitioner.place

    def append(self, value: R, *, task: int | None = None) -> Ack:
        """Add one value, on the task that the depot chooses unless ``task`` says another.

        The Ack that it returns has the outcome of the value: ``.result()`` waits for that, and so does
        ``await``. Raises UsageError for what is no record of this depot.
        """
        record, chosen = self._placed(value, task)
        return self.producer.append(record, task=chosen)

    def append_and_wait(self, value: R, *, task: int | None = None) -> dict[str, Any]:
        """Add one value and wait for what ``ack`` asks for; this is faster than ``append(...).result()``."""
        record, chosen = self._placed(value, task)
        return self.producer.append_and_wait(record, task=chosen)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended so far is settled, well or not."""
        self.producer.flush(timeout)

    def close(self, timeout: float | None = 30.0) -> None:
        """Flush, and refuse further appends."""
        self.producer.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _placed(self, value: R, task: int | None) -> tuple[bytes, int | None]:
        return self._place(value) if task is None else (record_of(value), task)


def names_of(depot: Depot[Any], module: str | None) -> tuple[str, str]:
    """Return the names of a declared depot's module, or ``module`` if that is given, and of the depot.

    Raises UsageError for what is no depot of a module's class.
    """
    from stretto.module.module import Depot, Module, declarations  # noqa: PLC0415 - most clients go by names

    given: object = depot
    if not isinstance(given, Depot):
        raise UsageError(f"{given!r} is no depot; give one of a module's class, as Shop.orders, or two names")
    owner = given.owner
    if owner is None or not issubclass(owner, Module):
        raise UsageError(f"{given!r} is of no module; give an attribute of a module's class, as Shop.orders")
    return module or declarations(owner).name, given.name


def check_declared(module: str, depot: Depot[Any], description: control.ModuleDescription) -> DepotSpec:
    """Return what the cluster knows of a depot. Raises UsageError if the class at hand says otherwise."""
    spec = find_depot(module, description, depot.name)
    if description.depots is not None and spec.declared != depot.spec:
        raise UsageError(
            f"depot {depot.name} of module {module} has another partition_by on the cluster than in the "
            "class given; append with the class that was launched, or update the module"
        )
    return spec
