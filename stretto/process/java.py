"""The Java that runs ZooKeeper and Spark, found and tried before anything that needs it is started.

It is looked for where Spark looks: in ``JAVA_HOME``, or on ``PATH`` if that is not set. A Java counts if it
runs and is new enough. Whatever is wrong with it, a person reads the same sentence, which ``make`` has too,
and behind it what was found.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from stretto.errors import StrettoError

VERSION_MIN = 17
NEEDED = "stretto needs Java 17 or newer; install it with: apt-get install openjdk-17-jre-headless"
_ANSWER_SECONDS = 30.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


class JavaMissing(StrettoError):
    """There is no Java here that can run ZooKeeper and Spark."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{NEEDED} ({found})")


def require_java() -> str:
    """Return the path of the Java to run, or raise :class:`JavaMissing` with what is wrong with it."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        raise JavaMissing(f"there is none in JAVA_HOME, which is {home}" if home else "there is none on PATH")
    version = _version_of(java)
    if version < VERSION_MIN:
        raise JavaMissing(f"{java} is Java {version}" + (", which JAVA_HOME names" if home else ""))
    return java


@functools.cache
def _version_of(java: str) -> int:
    """Ask a Java for its version, once in the life of this process."""
    try:
        done = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except OSError as error:
        raise JavaMissing(f"{java} does not run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise JavaMissing(f"{java} does not answer") from None
    said = done.stdout.decode(errors="replace")
    found = _VERSION.search(said)
    if done.returncode != 0 or found is None:
        first = next((line.strip() for line in said.splitlines() if line.strip()), "it says nothing")
        raise JavaMissing(f"{java} does not run: {first}")
    major, minor = int(found[1]), int(found[2] or 0)
    # Up to Java 8 the first number was always 1.
    return minor if major == 1 else major
