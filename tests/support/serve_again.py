"""A scheduler or server of BytePS that runs LIVES times, one after another: serve_again.py LIVES"""

from __future__ import annotations

import subprocess
import sys

for _ in range(int(sys.argv[1])):
    subprocess.run([sys.executable, "-c", "import byteps.server"], check=True)
