from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from stretto import wire
from stretto.types import TaskId
from stretto.worker.microbatch import messages
from stretto.worker.microbatch.desk import MicrobatchDesk
from stretto.zk.paths import GroupKey

GROUP = GroupKey("m", 1, 0)


def test_who_goes_by_other_code_takes_no_part_in_a_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    replies: list[wire.ToClient] = []
    worker = SimpleNamespace(
        loop=None,
        groups={},
        artifact="of an update",
        transport=SimpleNamespace(reply=lambda _sender, reply: replies.append(reply)),
    )
    desk = MicrobatchDesk(cast(Any, worker))
    monkeypatch.setattr(desk, "_deliver", lambda *_: True)
    body = memoryview(msgspec.msgpack.encode(messages.Poll(1, {})))
    for code in ("the one before", "of an update"):
        message = wire.Microbatch(1, GROUP, TaskId(0), "take", code)
        desk.received(cast(Any, "sender"), message, [body])
    assert [type(reply) for reply in replies] == [wire.Refused, wire.Taken]
