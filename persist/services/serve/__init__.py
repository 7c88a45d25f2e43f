"""Notification of new records, commits for other clients, and queries by Flight SQL, Postgres and Iceberg (rule 20).

Promises: a notification is a hint. Without a server, or with a wrong one, answers are the same and only later. A writer
never waits for a notification. A client that does not read its answers holds back neither history nor other clients.
"""
