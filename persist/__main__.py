"""`python -m persist`: see `persist.cli.main`."""

import sys

from persist.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
