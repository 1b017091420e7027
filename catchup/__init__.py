"""How a follower gets back into the ISR: near horizon and far horizon."""

if __name__ == "catchup":
    raise ImportError("this folder installs as stretto.catchup; write 'import stretto.catchup'")
