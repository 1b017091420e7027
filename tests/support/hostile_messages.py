"""Every message of a union with values in its fields that no honest peer would send."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

INTEGERS = (0, 1, -1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
TEXTS = ("", "a/b", "/", "..", ".", "zookeeper", "\0", "\n", "x" * 70_000, "\N{PILE OF POO}", "None")
BLOBS = (b"", b"\0", b"\xff" * 7, b"\x92\xff", bytes(70_000))
BODIES = ((), (b"",), (b"\xff" * 40,), (b"\x00" * 40,), (b"\x93\x01", b"\xc1"), (bytes(9),) * 20)
DEPTH_MAX = 6


class Hostile:
    """Messages made by chance; the same ones for the same seed."""

    def __init__(self, seed: int, given: Mapping[type, tuple[Any, ...]]) -> None:
        """Seed the messages; ``given`` has, by type, existing values that are worth trying too."""
        self._random = random.Random(seed)
        self._given = given

    def messages(self, kinds: Sequence[Any], each: int) -> Iterator[bytes]:
        """Yield so many messages of each kind of struct, in their order, as MessagePack."""
        for kind in kinds:
            for _ in range(each):
                yield msgspec.msgpack.encode(self._made(inspect.type_info(kind), 0))

    def bodies(self) -> tuple[bytes, ...]:
        return self._random.choice(BODIES)

    def _made(self, type_: inspect.Type, depth: int) -> Any:
        match type_:
            case inspect.StructType(fields=fields):
                values = {each.encode_name: self._made(each.type, depth + 1) for each in fields}
                tagged = {} if type_.tag_field is None else {type_.tag_field: type_.tag}
                return list((tagged | values).values()) if type_.array_like else tagged | values
            case inspect.NamedTupleType(cls=kind) if kind in self._given and self._random.random() < 0.8:
                return self._random.choice(self._given[kind])
            case inspect.NamedTupleType(fields=fields):
                return [self._made(each.type, depth + 1) for each in fields]
            case inspect.UnionType(types=types):
                return self._made(self._random.choice(types), depth)
            case inspect.IntType():
                return self._random.choice((*INTEGERS, self._random.randrange(8)))
            case inspect.FloatType():
                return self._random.choice((0.0, -1.0, 1e308, float("inf"), float("nan")))
            case inspect.BoolType():
                return self._random.random() < 0.5
            case inspect.StrType():
                return self._random.choice((*TEXTS, *self._given.get(str, ())))
            case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
                return self._random.choice(BLOBS)
            case inspect.NoneType():
                return None
            case inspect.EnumType(cls=kind):
                return self._random.choice(list(kind)).value
            case inspect.LiteralType(values=values):
                return self._random.choice(values)
            case inspect.TupleType(item_types=types):
                return tuple(self._made(each, depth + 1) for each in types)
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                return tuple(self._made(item, depth + 1) for _ in range(self._few(depth)))
            case inspect.SetType(item_type=item) | inspect.FrozenSetType(item_type=item):
                return [self._made(item, depth + 1) for _ in range(self._few(depth))]
            case inspect.DictType(key_type=key, value_type=value):
                return {
                    self._made(key, depth + 1): self._made(value, depth + 1) for _ in range(self._few(depth))
                }
            case inspect.RawType():
                return msgspec.Raw(b"\xc0")
            case inspect.AnyType():
                return self._random.choice((None, 1, "x", [], {}))
            case _:
                raise AssertionError(f"nothing is known of {type_}")

    def _few(self, depth: int) -> int:
        return self._random.randrange(3) if depth < DEPTH_MAX else 0
