"""How data comes and goes: sources, sinks, messages of change data capture, and Spark."""
