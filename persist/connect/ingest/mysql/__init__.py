"""MySQL and MariaDB as sources, by the log of the server."""
