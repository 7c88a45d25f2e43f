"""`python -m persist`: see `persist.cli`."""

import sys

from persist.cli import main

if __name__ == "__main__":
    sys.exit(main())
