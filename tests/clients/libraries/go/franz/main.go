// Transactions of franz-go: franz ADDRESSES PREFIX. What test_more_clients.py says of these programs.
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

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
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

func options(more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{kgo.SeedBrokers(addresses...)}, more...)
}

func client(more ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(options(more...)...)
	must(err)
	return made
}

// Both producers have the same id.
func transactional() *kgo.Client {
	made := client(kgo.TransactionalID(prefix))
	_, _, err := made.ProducerID(ctx)
	must(err)
	return made
}

func record(queue, value string) *kgo.Record {
	return &kgo.Record{Topic: queue, Value: []byte(value)}
}

func commitAndAbort(producer *kgo.Client, names []string) {
	for number := range transactions {
		must(producer.BeginTransaction())
		for index := range each {
			for _, queue := range names {
				producer.Produce(ctx, record(queue, fmt.Sprintf("%d.%d", number, index)), func(_ *kgo.Record, err error) { must(err) })
			}
		}
		must(producer.Flush(ctx))
		must(producer.EndTransaction(ctx, number%2 == 0))
	}
}

// The first batch is aborted, and read again.
func transform(source, target string) {
	plain := client()
	for index := range records {
		plain.Produce(ctx, record(source, fmt.Sprintf("in %d", index)), func(_ *kgo.Record, err error) { must(err) })
	}
	must(plain.Flush(ctx))
	plain.Close()

	session, err := kgo.NewGroupTransactSession(options(
		kgo.TransactionalID(prefix+"-transform"),
		kgo.ConsumerGroup(prefix+"-group"),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	)...)
	must(err)
	defer session.Close()
	aborted := false
	for done := 0; done < records; {
		fetched := session.PollRecords(ctx, batch)
		must(fetched.Err())
		must(session.Begin())
		fetched.EachRecord(func(one *kgo.Record) {
			value := strings.ReplaceAll(string(one.Value), "in", "out")
			session.Produce(ctx, record(target, value), func(_ *kgo.Record, err error) { must(err) })
		})
		must(session.Client().Flush(ctx))
		committed, err := session.End(ctx, kgo.TransactionEndTry(aborted))
		must(err)
		aborted = true
		if committed {
			done += fetched.NumRecords()
		}
	}
}

// The error of the first producer, in whose transaction the second begins; the second writes the end.
func fence(first *kgo.Client, names []string) string {
	must(first.BeginTransaction())
	must(first.ProduceSync(ctx, record(names[0], "of the fenced one")).FirstErr())
	second := transactional()
	defer second.Close()
	refused := first.EndTransaction(ctx, kgo.TryCommit)
	must(second.BeginTransaction())
	for _, queue := range names {
		must(second.ProduceSync(ctx, record(queue, end)).FirstErr())
	}
	must(second.EndTransaction(ctx, kgo.TryCommit))
	if named, ok := errors.AsType[*kerr.Error](refused); ok {
		return named.Message
	}
	return fmt.Sprint(refused)
}

// What is committed in each queue, up to the end that the second producer wrote.
func read(names []string) map[string][]string {
	reader := client(kgo.ConsumeTopics(names...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer reader.Close()
	seen := map[string][]string{}
	for ended := 0; ended < len(names); {
		fetched := reader.PollFetches(ctx)
		must(fetched.Err())
		fetched.EachRecord(func(one *kgo.Record) {
			seen[one.Topic] = append(seen[one.Topic], string(one.Value))
			if string(one.Value) == end {
				ended++
			}
		})
	}
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
	first := transactional()
	defer first.Close()
	commitAndAbort(first, names)
	transform(source, target)
	all := append(names, target)
	fenced := fence(first, all)
	seen := read(all)
	offsets, err := kadm.NewClient(first).FetchOffsets(ctx, prefix+"-group")
	must(err)
	committed, _ := offsets.Lookup(source, 0)
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{"fenced": fenced, "read": seen, "offset": committed.At}))
}
