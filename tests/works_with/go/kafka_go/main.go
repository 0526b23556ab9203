// kafka-go: writes records with keys to a queue, and reads them by a consumer group, whose offsets it commits.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
	address, queue := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	writer := &kafka.Writer{
		Addr: kafka.TCP(address), Topic: queue, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll,
		Compression: kafka.Snappy, BatchTimeout: 10 * time.Millisecond,
	}
	var records []kafka.Message
	for number := range 100 {
		records = append(records, kafka.Message{
			Key: []byte(fmt.Sprint("k", number%7)), Value: []byte(fmt.Sprint("v", number)),
			Headers: []kafka.Header{{Key: "h", Value: []byte("1")}},
		})
	}
	check(writer.WriteMessages(ctx, records...))
	check(writer.Close())
	read := map[string]int{}
	for range 2 { // a second reader goes on behind the first
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{address}, GroupID: queue, Topic: queue, StartOffset: kafka.FirstOffset,
			MaxWait: 200 * time.Millisecond,
		})
		for range 50 {
			record, err := reader.FetchMessage(ctx)
			check(err)
			read[string(record.Value)]++
			check(reader.CommitMessages(ctx, record))
		}
		check(reader.Close())
	}
	check(json.NewEncoder(os.Stdout).Encode(len(read)))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
