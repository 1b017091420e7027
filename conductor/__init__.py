"""The conductor: pure planners of assignment and leadership, and the driver that runs them."""

if __name__ == "conductor":
    raise ImportError("this folder installs as stretto.conductor; write 'import stretto.conductor'")
