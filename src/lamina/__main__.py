"""`python -m lamina` is the program `lamina`."""

import sys

from lamina.cli import main

sys.exit(main())
