"""The `prophet` command as `python -m prophet_scheduler`."""

from prophet_scheduler.cli.main import main

main()
