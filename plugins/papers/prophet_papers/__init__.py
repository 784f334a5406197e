"""Policies of other papers and systems, one file each; `algorithms` has their algorithms, independent of the queue."""
