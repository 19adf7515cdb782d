"""``python -m classmargin …`` is the command ``classmargin …``."""

from __future__ import annotations

import sys

from classmargin.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
