"""Training scripts of the experiments. Each is an ordinary program of its framework, unaware of Prophet.

`pytorch` has a module for each kind of job. The framework-independent parts, shared with other packages' scripts, are
in this folder.
"""
