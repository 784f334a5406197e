"""TicTac (Hashemi, Jyothi, Campbell, arXiv:1803.03288, SysML 2019): the order in which a worker receives parameters.

`oracle` gives the time of an operation, `ordering` has the two heuristics, `worker` evaluates an order, and `toys` has
the paper's two extreme models. The policy for the queue is in prophet_papers/tictac.py.
"""
