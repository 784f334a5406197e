"""Policies of other papers and systems, a file each; their algorithms, which know no queue, are in `algorithms`."""
