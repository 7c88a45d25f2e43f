"""Keyed collections under faults: random clients, what they were told, and a judge who knows the log and ten lines."""
