"""The worker process: task threads, applied state, executors and transport."""

if __name__ == "worker":
    raise ImportError("this folder installs as stretto.worker; write 'import stretto.worker'")
