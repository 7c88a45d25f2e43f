"""Topics of Kafka as sources, with or without a schema registry."""
