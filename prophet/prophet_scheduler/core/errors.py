"""User errors: mistakes that the user made and can fix. The command line prints each as one line."""


class UserError(Exception):
    """Bad input. The message names the key or file and says what to do.

    The command line prints `prophet: MESSAGE` and exits with status 2.
    """
