"""``python -m stretto.worker SETTINGS``: the process that ``stretto worker`` becomes.

What read the command line takes 10 MB, which a worker does not need any more, and of workers there are many.
"""

from __future__ import annotations

import sys

from stretto.process.exit_codes import exit_code
from stretto.worker.settings import WorkerSettings


def main() -> None:
    from stretto.worker.start import run  # noqa: PLC0415 - it takes long, and may be interrupted

    run(WorkerSettings.decode(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(exit_code(main))
