// watermill: a router takes messages of one queue, and publishes to another; a handler fails once and is given its message again.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

func main() {
	address, queue := os.Args[1], os.Args[2]
	brokers, log := []string{address}, watermill.NopLogger{}
	settings := kafka.DefaultSaramaSubscriberConfig()
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers, Marshaler: kafka.DefaultMarshaler{}}, log)
	check(err)
	subscribe := func(group string) message.Subscriber {
		subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
			Brokers: brokers, Unmarshaler: kafka.DefaultMarshaler{}, ConsumerGroup: queue + group,
			OverwriteSaramaConfig: settings,
		}, log)
		check(err)
		return subscriber
	}
	for number := range 50 {
		check(publisher.Publish(queue, message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprint(number)))))
	}
	router, err := message.NewRouter(message.RouterConfig{}, log)
	check(err)
	var lock sync.Mutex
	failed, seen := false, map[string]int{}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	router.AddHandler("copy", queue, subscribe("-in"), queue+"-out", publisher, func(m *message.Message) ([]*message.Message, error) {
		lock.Lock()
		defer lock.Unlock()
		if string(m.Payload) == "7" && !failed {
			failed = true
			return nil, errors.New("once more")
		}
		return message.Messages{message.NewMessage(watermill.NewUUID(), m.Payload)}, nil
	})
	router.AddNoPublisherHandler("count", queue+"-out", subscribe("-out"), func(m *message.Message) error {
		lock.Lock()
		defer lock.Unlock()
		seen[string(m.Payload)]++
		if len(seen) == 50 {
			cancel()
		}
		return nil
	})
	check(router.Run(ctx))
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"seen": len(seen), "failed": failed}))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
