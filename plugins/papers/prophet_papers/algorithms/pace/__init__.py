"""PACE (Bao, Peng, Chen, Wu, INFOCOM 2020): preemptive all-reduce scheduling and balanced fusion.

`problem` reduces a graph to releases, lengths and tails, `schedule` finds the best preemptive schedule, `fusion`
chooses the transfers to fuse. The policy for the queue is in prophet_papers/pace.py.
"""
