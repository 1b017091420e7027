"""The Cluster UI and the REST interface."""

if __name__ == "ui":
    raise ImportError("this folder installs as stretto.ui; write 'import stretto.ui'")
