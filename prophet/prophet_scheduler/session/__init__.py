"""One job's mind: what its session decides, from what has happened."""
