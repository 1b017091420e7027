"""What a worker answers people, where that is not what they hope for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from stretto import control
from stretto.vocabulary.groups import GroupKey
from stretto.wire import messages as wire
from stretto.worker.calls import Calls


def test_who_no_longer_leads_a_group_says_so_as_what_passes() -> None:
    """Whoever waits for a module to settle asks again, and does not give up."""
    replies: list[wire.ToClient] = []
    worker: Any = SimpleNamespace(
        worker="w0",
        streams=SimpleNamespace(find_failures=lambda *_: False),
        transport=SimpleNamespace(reply=lambda _, reply: replies.append(reply)),
    )
    call = control.Failures(group=GroupKey("m", 1, 0))
    Calls(worker).asked(b"", wire.Ask(7, msgspec.Raw(control.encode(call))))
    [failed] = replies
    assert isinstance(failed, wire.Failed)
    assert (failed.request, failed.fault) == (7, wire.Fault.PASSING)
    assert "does not lead group m/1/0; ask again" in failed.why


def test_who_does_not_lead_a_group_settles_nothing_of_it_and_says_so() -> None:
    replies: list[wire.ToClient] = []
    worker: Any = SimpleNamespace(
        worker="w0",
        groups={},
        microbatches=SimpleNamespace(is_mine=lambda _: False),
        transport=SimpleNamespace(reply=lambda _, reply: replies.append(reply)),
    )
    call = control.SettleFailures(group=GroupKey("m", 1, 0), keys=(), again=True)
    Calls(worker).asked(b"", wire.Ask(7, msgspec.Raw(control.encode(call))))
    [failed] = replies
    assert isinstance(failed, wire.Failed)
    assert (failed.fault, failed.why) == (
        wire.Fault.PASSING,
        "worker w0 does not lead group m/1/0; ask again",
    )
