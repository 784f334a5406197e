"""TicTac (Hashemi, Jyothi, Campbell, arXiv:1803.03288, SysML 2019): the order in which a worker receives parameters.

`ordering` has the two heuristics, and `worker` evaluates an order. The policy for the queue is in
prophet_papers/tictac.py.
"""
