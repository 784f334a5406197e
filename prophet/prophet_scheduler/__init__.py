"""Prophet: a communication scheduler for data-parallel training on slow networks.

Only the version lives here; importing the package must stay cheap, because the BytePS autoload
imports it in every training process.
"""

__version__ = "0.1.0"
