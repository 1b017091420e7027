"""Whatever bytes come, a decoder takes them or refuses them."""

from __future__ import annotations

import pytest

from stretto.errors import PeerError
from stretto.wire import messages as wire


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="no MessagePack"),
        pytest.param(b"\x81\xa4type\xa5hellx", id="no such message"),
        pytest.param(b"\x82\xa4type\xa7welcome\xa4name\xa1\xff", id="text that is no UTF-8"),
        pytest.param(b"\x81\xa1a" * 1_100 + b"\xc0", id="nested too deeply"),
    ],
)
def test_a_malformed_header_is_refused(header: bytes) -> None:
    with pytest.raises(PeerError, match="malformed"):
        wire.decode_to_worker(header)
    with pytest.raises(PeerError, match="malformed"):
        wire.decode_to_client(header)
