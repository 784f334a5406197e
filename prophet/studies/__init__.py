"""Systems of their own, studied on a simulator of theirs."""
