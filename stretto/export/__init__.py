"""Exports: a PState or a depot of a module as files that any tool reads, written by a Spark job.

The command (:mod:`stretto.cli.data.export`) checks what is asked for, a process of its own runs the Spark job
(:mod:`~stretto.export.job`, started and watched by :mod:`~stretto.export.running`) with columns that the
format can hold (:mod:`~stretto.export.columns`), and what it wrote takes the place of what was there in one
step (:mod:`~stretto.export.destination`), with a manifest that tells what it is
(:mod:`~stretto.export.manifest`).
"""
