"""The door to the ``stretto`` command, by its name or as ``python -m stretto`` with a given interpreter."""

from typing import NoReturn

from stretto.process.interrupts import end_at_once, ending_at_once


def main() -> NoReturn:
    """Run the command line of this process."""
    with ending_at_once():
        from stretto.cli import main as run  # noqa: PLC0415 - it is what takes a while
    try:
        run()
    finally:
        end_at_once()


if __name__ == "__main__":
    main()
