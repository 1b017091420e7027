"""What a conductor answers when ZooKeeper does not."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from kazoo.exceptions import ConnectionLoss

from stretto import control
from stretto.conductor.process import Conductor
from stretto.errors import RetriableError


@pytest.mark.parametrize("is_connected", [False, True])
def test_an_answer_that_was_lost_is_not_told_as_a_failure(is_connected: bool) -> None:
    conductor = MagicMock()
    conductor._client.connected = is_connected
    conductor._answer.side_effect = ConnectionLoss
    with pytest.raises(RetriableError, match="may be done or not; look before"):
        Conductor._handle(cast(Any, conductor), control.Pause(module="m"), [])


def test_what_was_never_begun_may_be_asked_again() -> None:
    conductor = MagicMock()
    conductor._client.connected = False
    conductor._look.side_effect = ConnectionLoss
    with pytest.raises(RetriableError, match="wait a moment and try again"):
        Conductor._handle(cast(Any, conductor), control.Pause(module="m"), [])
