"""`python -m persist`: see `persist.cli.main`."""

from persist.cli import entry

if __name__ == "__main__":
    entry()
