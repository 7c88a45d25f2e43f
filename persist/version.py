"""Which release this is."""

__version__ = "0.1.0"  # A test holds it against pyproject.toml.
