"""`python -m tests.fuzz` is `python -m tests.fuzz.run`."""

from __future__ import annotations

import sys

from tests.fuzz.run import main

sys.exit(main())
