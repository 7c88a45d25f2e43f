"""Postgres as a source, by logical replication."""
