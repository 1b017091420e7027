"""``stretto demo``: a cluster, a module and a load on it, to look at and to break."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from stretto import control
from stretto.artifact import load as load_artifact
from stretto.cli.cluster import Key
from stretto.cli.daemons.up import run_cluster
from stretto.cli.demo import view
from stretto.cli.demo.load import Load
from stretto.cli.hints import exports
from stretto.cli.output import console
from stretto.client.api import Client
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.upload import upload
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.examples.wordcount import sentences
from stretto.local.cluster import UI_PORT, LocalCluster
from stretto.network.routing import Network
from stretto.process.java import require_java
from stretto.zk.server.embedded import is_free

SOURCE = f"{Path(sentences.__file__).with_name('wordcount.py')}:WordCount"
MODULE = "WordCount"
TASKS, THREADS, WORKERS, FACTOR = 8, 4, 1, 3
LAUNCH_SECONDS = 60.0
VIEW_SECONDS = 0.5


def demo(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Keep the cluster here; without it, it is gone afterwards.", show_default=False),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="Stop by itself after so long; 0: Ctrl-C.")] = 0.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where the conductor listens.")] = 0,
    key: Key = None,
) -> int:
    """Run a cluster of three nodes with an example module under load, and show what happens.

    At the end it reads everything back: what was acknowledged must be there.

    Example: stretto demo --seconds 30
    """
    require_java()
    typer.echo("Starting a cluster of three nodes; Ctrl-C stops it.")
    ui_port = UI_PORT if is_free(UI_PORT) else 0
    folder = data_dir or Path(tempfile.mkdtemp(prefix="stretto-demo-"))
    try:
        is_sound = _run(LocalCluster(folder, 3, port=port, key=key, has_ui=True, ui_port=ui_port), seconds)
    except UsageError:
        _remove(folder, data_dir)
        raise
    except StrettoError as error:
        if str(folder) in str(error):
            raise
        raise StrettoError(f"{error}; its data and logs are in {folder}") from None
    if not is_sound:
        typer.echo(f"Its data and logs are in {folder}")
        return 1
    _remove(folder, data_dir)
    return 0


def _remove(folder: Path, kept: Path | None) -> None:
    """Delete the folder unless a person asked to keep it; after a failure it stays, to be looked at."""
    if kept is None:
        shutil.rmtree(folder, ignore_errors=True)


def _run(cluster: LocalCluster, seconds: float) -> bool:
    """Run the demo until it is stopped, and return whether what it reads back is what was acknowledged."""
    show = _Show(cluster, seconds)
    run_cluster(cluster, show.run)
    return show.is_sound


class _Show:
    """The course of the demo, on a thread of its own, from the moment the cluster is ready."""

    def __init__(self, cluster: LocalCluster, seconds: float) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self.is_sound = True

    def run(self, conductor: str, stop: threading.Event) -> None:
        self._stop = stop
        network = Network(self._cluster.bootstrap, self._cluster.key)
        client = Client(network)
        try:
            asked = Cluster(network, self._cluster.bootstrap)
            module = self._launch(asked)
            if module is None:
                return
            client.refresh()
            load = Load(client, MODULE, module.depots[0], module.tasks)
            before = load.read_back()
            load.start()
            self._show(asked, client, load, conductor)
            load.stop()
            self._check(load, before)
        finally:
            client.close()

    def _launch(self, cluster: Cluster) -> control.ModuleView | None:
        """Return the example module once it is led everywhere, or None if the demo is stopped before."""
        known = {module.module for module in cluster.ask(control.Modules())}
        if MODULE not in known:
            with tempfile.TemporaryDirectory() as folder:
                artifact, manifest = load_artifact(SOURCE, Path(folder))
                nodes = [node.address for node in cluster.ask(control.Nodes()) if node.address]
                upload(cluster.network, nodes, artifact, copies=FACTOR)
            cluster.ask(
                control.Launch(
                    module=manifest.name,
                    artifact=artifact.digest,
                    manifest=manifest,
                    tasks=TASKS,
                    threads=THREADS,
                    workers=WORKERS,
                    replication_factor=FACTOR,
                )
            )
        deadline = time.monotonic() + LAUNCH_SECONDS
        while True:
            [module] = cluster.ask(control.Modules(module=MODULE))
            if module.led == module.groups and module.state != "launching":
                return module
            if time.monotonic() > deadline:
                raise StrettoError(
                    f"the example module did not start; see the logs in {self._cluster.folder}"
                )
            if self._stop.wait(0.05):
                return None

    def _show(self, cluster: Cluster, client: Client, load: Load, bootstrap: str) -> None:
        deadline = time.monotonic() + self._seconds if self._seconds else float("inf")
        terminal = sys.stdout.isatty()
        reach = exports(bootstrap, self._cluster.key_file)
        with Live(console=console(), auto_refresh=False) if terminal else _Nothing() as live:
            while not self._stop.wait(VIEW_SECONDS) and time.monotonic() < deadline:
                try:
                    nodes = cluster.ask(control.Nodes(), timeout=2)
                    [module] = cluster.ask(control.Modules(module=MODULE), timeout=2)
                    client.refresh()
                except RetriableError as error:
                    typer.echo(f"stretto: {error}", err=True)
                    continue
                account = load.account()
                if live is None:
                    typer.echo(view.line(module, account))
                else:
                    pids = view.worker_pids(self._cluster.folder)
                    groups = [group for group in client.groups() if group.key.module == MODULE]
                    live.update(
                        view.render(
                            nodes=nodes,
                            module=module,
                            groups=groups,
                            account=account,
                            pids=pids,
                            exports=reach,
                            ui=self._cluster.ui,
                        ),
                        refresh=True,
                    )

    def _check(self, load: Load, before: int) -> None:
        account = load.account()
        found = load.read_back() - before
        lost = account.acknowledged - found
        uncertain = account.failed + account.unknown
        typer.echo(
            f"{account.acknowledged:,} records acknowledged, {found:,} read back"
            + (f", {uncertain:,} without an answer" if uncertain else "")
            + (f": {lost:,} LOST." if lost > 0 else ": none lost.")
            + (f" {-lost - uncertain:,} TOO MANY." if -lost > uncertain else "")
        )
        self.is_sound = 0 <= -lost <= uncertain


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None
