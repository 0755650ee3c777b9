"""`python -m lamina` runs the program `lamina`."""

import sys

from lamina.cli import main

sys.exit(main())
