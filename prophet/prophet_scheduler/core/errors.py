"""Errors that a person caused and can mend; the command line prints them as one line."""


class UserError(Exception):
    """Bad input: the message names the key or file and says what to do.

    The command line prints `prophet: MESSAGE` and exits with status 2.
    """
