"""The console: pages in a browser, made from Kafka's answers to the one who looks.

A process of its own and a Kafka client that logs in as its user: what the user may not do at
Kafka's API the console cannot do.
"""
