"""Executors in processes of their own, which have stretto and the cluster key because a job brings them.

Spark plans in processes beside the driver, to which it gives no files of a job: there stretto is installed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pyspark
import pytest

from stretto.export.manifest import SUFFIX
from stretto.network.keys import ClusterKey
from stretto.specs.modules import DepotSpec
from tests.support.cluster import DEADLINE_SECONDS, MODULE, Cluster, free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
SPARK_HOME = Path(pyspark.__file__).parent
SITE_PACKAGES = SPARK_HOME.parent
#: Spark starts up to five JVMs here, each of which takes minutes on a machine that is busy with other things.
START_SECONDS = 240.0
JOB_SECONDS = 600.0
#: Short lives: compiling well is not worth it.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
JOB = """
import sys

import pyspark_stretto
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

bootstrap, module = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
pyspark_stretto.register(spark)


def stretto_of_executor(_):
    import pyspark_stretto
    return pyspark_stretto.__file__


print("found", *spark.sparkContext.parallelize(range(2), 2).map(stretto_of_executor).collect())
print("executors", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
where = {"bootstrap": bootstrap, "module": module, "key": "cluster.key"}
events = spark.read.format("stretto").options(**where).option("depot", "events").schema("n LONG").load()
doubled = events.select((col("n") * 2).alias("n"))
doubled.write.format("stretto").options(**where).option("depot", "results").mode("append").save()
spark.stop()
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stretto's own code as an archive."""
    folder = tmp_path_factory.mktemp("package")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = folder.iterdir()
    return wheel.rename(folder / "stretto.zip")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A Python that has what stretto needs, and not stretto: without ``site``, nobody looks for what is
    installed as a link to its sources. And a home of Spark's own, where it leaves what executors had."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    home = tmp_path / "spark"
    home.mkdir()
    for part in SPARK_HOME.iterdir():
        (home / part.name).symlink_to(part)
    return {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": str(SITE_PACKAGES),
    }


def says(log: Path, awaited: str) -> bool:
    return awaited in log.read_text()


@contextmanager
def standalone(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A master and a worker of Spark, as a person starts them."""
    address = f"spark://127.0.0.1:{free_port()}"
    deploy = "org.apache.spark.deploy"
    master = [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
    worker = [f"{deploy}.worker.Worker", "--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work")]
    with ExitStack() as closing:
        for arguments, awaited in (
            ([*master, "--webui-port", "0"], "I have been elected leader"),
            ([*worker, "--webui-port", "0", address], "Successfully registered with master"),
        ):
            log = folder / f"{arguments[0]}.log"
            process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", *arguments],
                env=environment,
                cwd=folder,
                stdout=closing.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT,
            )
            closing.callback(process.wait)
            closing.callback(process.kill)
            wait_until(f"{log.name} says {awaited!r}", partial(says, log, awaited), START_SECONDS)
        yield address


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["local-cluster", "standalone"])
def test_a_job_brings_package_and_key_to_its_executors(
    kind: str,
    start: Callable[..., Cluster],
    tmp_path: Path,
    package: Path,
    environment: dict[str, str],
) -> None:
    executors = 2 if kind == "local-cluster" else 1
    key = tmp_path / "cluster.key"
    ClusterKey.generate().save(key)
    cluster = start(key=key, depots=(DepotSpec(name="events"), DepotSpec(name="results", partition_by="n")))
    with cluster.connect().producer(MODULE, "events") as producer:
        acks = [producer.append(json.dumps({"n": n}).encode(), task=n % 2) for n in range(200)]
    for ack in acks:
        ack.result(DEADLINE_SECONDS)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(executors),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START_SECONDS:.0f}s",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(tmp_path / "local"),
        "spark.log.level": "ERROR",
        "spark.executorEnv.PYTHONPATH": str(SITE_PACKAGES),
    }
    with ExitStack() as closing:
        master = "local-cluster[2,1,1024]"
        if kind == "standalone":
            master = closing.enter_context(standalone(tmp_path, environment))
        command: list[str | Path] = [SPARK_HOME / "bin" / "spark-submit", "--master", master]
        command += ["--py-files", package, "--files", key]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += [job, ",".join(cluster.addresses()), MODULE]
        folder = tmp_path / "driver"
        folder.mkdir()
        done = subprocess.run(
            command,
            env={**environment, "PYTHONPATH": f"{SITE_PACKAGES}:{package}"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS,
            check=False,
        )
    assert done.returncode == 0, "\n".join(
        line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("\tat ")
    )
    assert f"executors {executors}\n" in done.stdout
    (found,) = re.findall("^found (.+)", done.stdout, re.MULTILINE)
    assert all("stretto.zip" in each and not each.startswith(str(package)) for each in found.split())
    records = cluster.connect().reader(MODULE, "results").read_all()
    assert Counter(json.loads(record.data)["n"] for record in records) == Counter(range(0, 400, 2))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_an_export_runs_on_a_master_elsewhere(
    start: Callable[..., Cluster], tmp_path: Path, environment: dict[str, str]
) -> None:
    """Its executors have stretto installed, and see the folder and the key under the same paths."""
    key = tmp_path / "cluster.key"
    ClusterKey.generate().save(key)
    cluster = start(key=key, depots=(DepotSpec(name="events"),))
    with cluster.connect().producer(MODULE, "events") as producer:
        acks = [producer.append(json.dumps({"n": n}).encode(), task=n % 2) for n in range(200)]
    for ack in acks:
        ack.result(DEADLINE_SECONDS)
    folder = tmp_path / "exports" / "events"
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.cores.max": "1",
    }
    installed = environment | {"PYSPARK_PYTHON": sys.executable}
    del installed["PYTHONPATH"]
    with standalone(tmp_path, installed) as master:
        command = [sys.executable, "-m", "stretto", "export", MODULE, "events", "--to", str(folder)]
        command += ["--format", "json", "--schema", "n LONG, _task INT", "--since", "last"]
        command += ["--master", master, "--bootstrap", ",".join(cluster.addresses()), "--key", str(key)]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        done = subprocess.run(
            command, env=installed, capture_output=True, text=True, timeout=JOB_SECONDS, check=False
        )
        jobs = list((tmp_path / "work").glob("app-*"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(jobs) == 1, "the rows were written elsewhere"
    rows = [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]
    assert sorted((row["n"], row["_task"]) for row in rows) == [(n, n % 2) for n in range(200)]
    [part] = json.loads(folder.with_name(folder.name + SUFFIX).read_text())["parts"]
    assert (part["rows"], [task["end"] for task in part["tasks"]]) == (200, [100, 100])
