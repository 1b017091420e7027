"""What a process needs to behave well: logs, exit codes, interrupts, private files, a Java that runs.

Nothing here knows what the process does. Start with :mod:`~stretto.process.exit_codes`, how every program
ends.
"""
