"""Where a daemon says that it can be reached."""

from __future__ import annotations

import pytest

from stretto.endpoint import advertised
from stretto.errors import UsageError
from stretto.keys import require_key


@pytest.mark.parametrize(
    ("listening", "advertise", "found"),
    [
        ("10.0.0.5:7400", None, "10.0.0.5:7400"),
        ("0.0.0.0:7400", "10.0.0.5", "10.0.0.5:7400"),
        ("0.0.0.0:7400", "10.0.0.5:0", "10.0.0.5:7400"),
        ("0.0.0.0:7400", "outside.example:17400", "outside.example:17400"),
        ("127.0.0.1:0", None, "127.0.0.1:0"),
    ],
)
def test_others_are_told_an_address_that_they_can_use(
    listening: str, advertise: str | None, found: str
) -> None:
    assert advertised(listening, advertise) == found


@pytest.mark.parametrize(
    ("listening", "advertise"),
    [("0.0.0.0:7400", None), ("[::]:7400", None), ("*:7400", None), ("10.0.0.5:7400", "0.0.0.0")],
)
def test_an_address_of_nobody_is_refused(listening: str, advertise: str | None) -> None:
    with pytest.raises(UsageError, match="--advertise HOST"):
        advertised(listening, advertise)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", ":7400", "127.0.0.1:port", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="write HOST:PORT"):
        require_key(address, None)
