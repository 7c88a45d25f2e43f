"""`python -m persist`: see `persist.tools.cli.main`."""

from persist.tools.cli import entry

if __name__ == "__main__":
    entry()
