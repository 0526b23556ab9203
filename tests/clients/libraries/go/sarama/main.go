// Transactions of sarama: sarama ADDRESSES PREFIX. What test_more_clients.py says of these programs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const (
	queues       = 3
	transactions = 5
	each         = 10
	records      = 200
	batch        = 40
	end          = "end"
)

var (
	ctx       context.Context
	addresses []string
	prefix    string
)

func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func settings() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Consumer.IsolationLevel = sarama.ReadCommitted
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	made.Producer.Return.Successes = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	return made
}

func producer(id string) sarama.SyncProducer {
	config := settings()
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = id
	config.Net.MaxOpenRequests = 1
	made, err := sarama.NewSyncProducer(addresses, config)
	must(err)
	return made
}

func message(queue, value string) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: queue, Value: sarama.StringEncoder(value)}
}

func commitAndAbort(writer sarama.SyncProducer, names []string) {
	for number := range transactions {
		must(writer.BeginTxn())
		some := []*sarama.ProducerMessage{}
		for index := range each {
			for _, queue := range names {
				some = append(some, message(queue, fmt.Sprintf("%d.%d", number, index)))
			}
		}
		must(writer.SendMessages(some))
		if number%2 == 0 {
			must(writer.CommitTxn())
		} else {
			must(writer.AbortTxn())
		}
	}
}

// A member of a group that copies what it reads. The first batch is aborted, and read again.
type copier struct {
	writer  sarama.SyncProducer
	target  string
	done    int
	aborted bool
	stop    context.CancelFunc
}

func (*copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	some := []*sarama.ConsumerMessage{}
	for one := range claim.Messages() {
		if some = append(some, one); len(some) < batch {
			continue
		}
		must(c.writer.BeginTxn())
		copies := []*sarama.ProducerMessage{}
		for _, one := range some {
			copies = append(copies, message(c.target, strings.ReplaceAll(string(one.Value), "in", "out")))
		}
		must(c.writer.SendMessages(copies))
		member := sarama.NewConsumerGroupMetadataFromSession(session, prefix+"-group", nil)
		must(c.writer.AddMessageToTxnWithGroupMetadata(some[len(some)-1], member, nil))
		if !c.aborted {
			must(c.writer.AbortTxn())
			c.aborted = true
			return nil // and join again, where the group's offset is
		}
		must(c.writer.CommitTxn())
		if c.done += len(some); c.done == records {
			c.stop()
		}
		some = nil
	}
	return nil
}

func transform(source, target string) {
	plain := producer("")
	some := []*sarama.ProducerMessage{}
	for index := range records {
		some = append(some, message(source, fmt.Sprintf("in %d", index)))
	}
	must(plain.SendMessages(some))
	must(plain.Close())

	group, err := sarama.NewConsumerGroup(addresses, prefix+"-group", settings())
	must(err)
	until, stop := context.WithCancel(ctx)
	work := &copier{writer: producer(prefix + "-transform"), target: target, stop: stop}
	for until.Err() == nil {
		must(group.Consume(until, []string{source}, work))
	}
	must(ctx.Err())
	must(group.Close())
	must(work.writer.Close())
}

// The error of the first producer, in whose transaction the second begins; the second writes the end.
func fence(first sarama.SyncProducer, names []string) string {
	must(first.BeginTxn())
	_, _, err := first.SendMessage(message(names[0], "of the fenced one"))
	must(err)
	second := producer(prefix)
	refused := first.CommitTxn()
	must(second.BeginTxn())
	for _, queue := range names {
		_, _, err := second.SendMessage(message(queue, end))
		must(err)
	}
	must(second.CommitTxn())
	must(second.Close())
	if first.TxnStatus()&sarama.ProducerTxnFlagFatalError == 0 {
		return fmt.Sprintf("not fatal: %v", refused)
	}
	for name, one := range map[string]sarama.KError{
		"PRODUCER_FENCED": sarama.ErrProducerFenced, "INVALID_PRODUCER_EPOCH": sarama.ErrInvalidProducerEpoch,
	} {
		if errors.Is(refused, one) {
			return name
		}
	}
	return fmt.Sprint(refused)
}

// What is committed in each queue, up to the end that the second producer wrote.
func read(names []string) map[string][]string {
	consumer, err := sarama.NewConsumer(addresses, settings())
	must(err)
	seen := map[string][]string{}
	for _, queue := range names {
		part, err := consumer.ConsumePartition(queue, 0, sarama.OffsetOldest)
		must(err)
		for value := ""; value != end; {
			select {
			case one := <-part.Messages():
				value = string(one.Value)
				seen[queue] = append(seen[queue], value)
			case <-ctx.Done():
				must(ctx.Err())
			}
		}
		must(part.Close())
	}
	must(consumer.Close())
	return seen
}

func main() {
	addresses, prefix = strings.Split(os.Args[1], ","), os.Args[2]
	var stop context.CancelFunc
	ctx, stop = context.WithTimeout(context.Background(), 90*time.Second)
	defer stop()

	names := []string{}
	for number := range queues {
		names = append(names, fmt.Sprintf("%s-%d", prefix, number))
	}
	source, target := prefix+"-in", prefix+"-out"
	first := producer(prefix)
	commitAndAbort(first, names)
	transform(source, target)
	all := append(names, target)
	fenced := fence(first, all)
	seen := read(all)
	admin, err := sarama.NewClusterAdmin(addresses, settings())
	must(err)
	offsets, err := admin.ListConsumerGroupOffsets(prefix+"-group", map[string][]int32{source: {0}})
	must(err)
	committed := offsets.GetBlock(source, 0).Offset
	must(admin.Close())
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{"fenced": fenced, "read": seen, "offset": committed}))
}
