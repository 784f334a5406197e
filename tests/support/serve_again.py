"""A scheduler or server of BytePS that runs LIVES times, one after another: serve_again.py LIVES BEGUN

The file BEGUN contains the number of schedulers that have begun. A server waits for the scheduler of its own life: one
that registers with the scheduler before, while this is about to end, waits for ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

lives, begun = int(sys.argv[1]), Path(sys.argv[2])
for life in range(lives):
    if os.environ["DMLC_ROLE"] == "scheduler":
        new = begun.with_suffix(".new")
        new.write_text(str(life + 1))
        new.replace(begun)
    while not begun.exists() or int(begun.read_text()) <= life:
        time.sleep(0.01)
    subprocess.run([sys.executable, "-c", "import byteps.server"], check=True)
