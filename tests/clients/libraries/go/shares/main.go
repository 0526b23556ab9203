// Members of a share group with franz-go: shares ADDRESSES QUEUE GROUP RECORDS.
//
// One takes what it is given, one no more than five at once. Of ten records one is rejected, one
// released the first time, and one renewed before it is accepted like all the others. Prints, as
// JSON, how often which record was given, by its value.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const strict = 5

type given struct {
	Counts  map[string][]int32 `json:"counts"`
	Refused []string           `json:"refused"`
	Most    int                `json:"most"` // that the careful member was given at once
	Both    bool               `json:"both"` // members were given something
}

func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func main() {
	addresses, queue, group := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3]
	records, err := strconv.Atoi(os.Args[4])
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	seen := given{Counts: map[string][]int32{}, Refused: []string{}}
	var lock sync.Mutex
	member := func(more ...kgo.Opt) *kgo.Client {
		made, err := kgo.NewClient(append([]kgo.Opt{
			kgo.SeedBrokers(addresses...), kgo.ShareGroup(group), kgo.ConsumeTopics(queue),
			kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
				if err := results.Error(); err != nil {
					lock.Lock()
					defer lock.Unlock()
					seen.Refused = append(seen.Refused, err.Error())
				}
			}),
		}, more...)...)
		must(err)
		return made
	}
	greedy, careful := member(kgo.ShareMaxRecords(10)), member(kgo.ShareMaxRecords(strict), kgo.ShareMaxRecordsStrict())
	done, some := 0, map[*kgo.Client]int{}
	for done < records {
		must(ctx.Err())
		for _, each := range []*kgo.Client{greedy, careful} {
			poll, stop := context.WithTimeout(ctx, 300*time.Millisecond)
			found := each.PollRecords(poll, 0).Records()
			stop()
			some[each] += len(found)
			if each == careful {
				seen.Most = max(seen.Most, len(found))
			}
			for _, record := range found {
				value := string(record.Value)
				seen.Counts[value] = append(seen.Counts[value], record.DeliveryCount())
				number, err := strconv.Atoi(value)
				must(err)
				done++
				switch {
				case number%10 == 0:
					record.Ack(kgo.AckReject)
				case number%10 == 1 && record.DeliveryCount() == 1:
					record.Ack(kgo.AckRelease)
					done--
				case number%10 == 2:
					record.Ack(kgo.AckRenew)
				default:
					record.Ack(kgo.AckAccept)
				}
			}
			must(each.FlushAcks(ctx))
			for _, record := range found {
				record.Ack(kgo.AckAccept) // nothing but for those that were renewed
			}
			must(each.FlushAcks(ctx))
		}
	}
	seen.Both = some[greedy] > 0 && some[careful] > 0
	greedy.Close()
	careful.Close()
	said, err := json.Marshal(seen)
	must(err)
	fmt.Println(string(said))
}
