"""`python -m prophet_scheduler`: the `prophet` command."""

from prophet_scheduler.cli.main import main

main()
