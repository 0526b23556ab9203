// The ordinary life of a topic, by librdkafka 1.9, which confluent-kafka-go 1.9.2 has within it.
//
//	librdkafka ADDRESS TOPIC       what each step gives, a line each
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/confluentinc/confluent-kafka-go/kafka"
)

const waitMS = 30_000

var address, topic string

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func settings(more kafka.ConfigMap) *kafka.ConfigMap {
	more["bootstrap.servers"] = address
	return &more
}

func send(producer *kafka.Producer, value string) {
	told := make(chan kafka.Event, 1)
	must(producer.Produce(&kafka.Message{
		TopicPartition: kafka.TopicPartition{Topic: &topic, Partition: 0},
		Key:            []byte("k"), Value: []byte(value),
	}, told))
	must((<-told).(*kafka.Message).TopicPartition.Error)
}

func produce(more kafka.ConfigMap) {
	producer, err := kafka.NewProducer(settings(more))
	must(err)
	defer producer.Close()
	_, transactional := more["transactional.id"]
	if transactional {
		must(producer.InitTransactions(context.Background()))
		must(producer.BeginTransaction())
		send(producer, "aborted")
		must(producer.AbortTransaction(context.Background()))
		must(producer.BeginTransaction())
	}
	for i := 0; i < 3; i++ {
		send(producer, fmt.Sprint("v", i))
	}
	if transactional {
		must(producer.CommitTransaction(context.Background()))
	}
}

func consume(count int) []string {
	consumer, err := kafka.NewConsumer(settings(kafka.ConfigMap{
		"group.id": topic, "auto.offset.reset": "earliest",
		"isolation.level": "read_committed", "enable.auto.commit": false,
	}))
	must(err)
	defer consumer.Close()
	must(consumer.Subscribe(topic, nil))
	var seen []string
	for end := time.Now().Add(waitMS * time.Millisecond); len(seen) < count && time.Now().Before(end); {
		if message, ok := consumer.Poll(200).(*kafka.Message); ok {
			seen = append(seen, string(message.Value))
		}
	}
	_, err = consumer.Commit()
	must(err)
	_, end, err := consumer.QueryWatermarkOffsets(topic, 0, waitMS)
	must(err)
	fmt.Printf("end=%d\n", end)
	return seen
}

func main() {
	address, topic = os.Args[1], os.Args[2]
	_, version := kafka.LibraryVersion()
	fmt.Println("version=" + version)
	admin, err := kafka.NewAdminClient(settings(kafka.ConfigMap{}))
	must(err)
	defer admin.Close()
	made, err := admin.CreateTopics(context.Background(), []kafka.TopicSpecification{
		{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}})
	must(err)
	fmt.Println("created=" + made[0].Error.Code().String())
	produce(kafka.ConfigMap{"enable.idempotence": true, "compression.type": "zstd"})
	produce(kafka.ConfigMap{"transactional.id": topic})
	fmt.Println("consumed=" + strings.Join(consume(6), ","))
	gone, err := admin.DeleteTopics(context.Background(), []string{topic})
	must(err)
	fmt.Println("deleted=" + gone[0].Error.Code().String())
}
