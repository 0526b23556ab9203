module kproxy.test/librdkafka

go 1.18

require github.com/confluentinc/confluent-kafka-go v1.9.2
