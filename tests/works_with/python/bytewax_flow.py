"""Bytewax: a dataflow reads a queue to its end, and writes what it makes of it to another one."""

import json
import sys

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main
from confluent_kafka import Producer

address, queue = sys.argv[1:3]
producer = Producer({"bootstrap.servers": address})
for number in range(100):
    producer.produce(queue, b"%d" % number)
producer.flush(30)
flow = Dataflow("flow")
found = kop.input("in", flow, brokers=[address], topics=[queue], tail=False)
doubled = op.map(
    "double", found.oks, lambda one: KafkaSinkMessage(one.key, b"%d" % (2 * int(one.value)))
)
kop.output("out", doubled, brokers=[address], topic=f"{queue}-out")
run_main(flow)
json.dump("ran", sys.stdout)
