"""PStates: what a module's data looks like, as types, as rows and as changes of rows.

A PState is stored as rows, keys and values that are bytes, and only its ends know what they mean: the writer
encodes once, a reader decodes, and all between them (replog, followers, LMDB, wire) pass bytes on.

| module | holds |
|---|---|
| ``types`` | the type of a PState as data: sent, compared, rebuilt without the author's code |
| ``tree`` | what of a type becomes keys of rows and what their values, and both directions |
| ``changes`` | the payload of a STATE entry: rows to put, rows and ranges to delete |
| ``overlay`` | rows, and rows with changes on top of them that are not applied |
| ``edit`` | reading and changing a PState by paths, for the code of a module |
"""
