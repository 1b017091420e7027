"""``python -m stretto`` is ``stretto``: the way to run it with a given interpreter."""

from stretto.cli import main

main()
