from __future__ import annotations

import sys

from remote.cli import main

sys.exit(main(sys.argv[1:]))
