"""The scalar vocabulary. Ranges are half-open everywhere: an *end* offset is exclusive."""

from typing import NewType, TypeAlias

Offset = NewType("Offset", int)
"""Position of an entry in a replog."""

Epoch = NewType("Epoch", int)
"""Number of a leadership of a group: +1 with every new leader, 0 before the first."""

WorkerId = NewType("WorkerId", str)

Incarnation = NewType("Incarnation", str)
"""A fresh random id per process start and per metastore session."""

StorageId = NewType("StorageId", str)
"""A random id written inside a replica's folder when it is created empty."""

ProducerId = NewType("ProducerId", int)
"""Id of a producer, chosen at random by a client; 0 means *no producer*."""

TaskId = NewType("TaskId", int)

Millis = NewType("Millis", int)
"""A point in time or a duration, in milliseconds."""

Buffer: TypeAlias = bytes | memoryview
"""Bytes that nobody copies on their way: a frame, a batch of records, a payload."""
