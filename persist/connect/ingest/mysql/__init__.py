"""MySQL and MariaDB as sources, by the server's binary log."""
