"""Workers in front of a real Kafka: which shards a worker owns, publication, rebuild, commands."""
