"""The vocabulary: small types and values that every other package speaks in.

It imports nothing but :mod:`stretto.errors`. Start with :mod:`~stretto.vocabulary.types`.
"""
