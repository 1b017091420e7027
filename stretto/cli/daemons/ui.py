"""``stretto ui``: the Cluster UI and the REST interface, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Key, reach
from stretto.local.cluster import UI_PORT
from stretto.process.interrupts import ending_at_once
from stretto.process.logs import configure
from stretto.process.private_files import create_private_files


def ui(
    host: Annotated[
        str, typer.Option(help="Where to listen. Beyond loopback it needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any.")] = UI_PORT,
    data_dir: Annotated[Path, typer.Option(help="Where the history of measures is kept.")] = Path(
        "stretto-ui"
    ),
    token_file: Annotated[
        Path | None,
        typer.Option(help="Holds the token without which nothing can be changed.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Serve the Cluster UI, the REST interface and /metrics until Ctrl-C.

    Without a token it listens on loopback only, and refuses what pages of other sites send.

    Example: stretto ui --bootstrap 10.0.0.5:7400 --host 0.0.0.0 --token-file ui.token
    """
    # Here, because no other command should wait for a web framework to load.
    with ending_at_once():
        from stretto.ui.security import load_token  # noqa: PLC0415
        from stretto.ui.server import serve  # noqa: PLC0415

    create_private_files()
    configure()
    token = load_token(token_file) if token_file is not None else None
    with reach(bootstrap, key) as cluster:
        serve(cluster, host=host, port=port, data_dir=data_dir, token=token)
    return 0
