"""`python -m spherometer` is the command line."""

import sys

from spherometer.cli import main

sys.exit(main())
