// Logs in over TLS with franz-go or sarama, writes two records and reads them:
// logins CLIENT MECHANISM ADDRESS QUEUE. The environment has CA, and CERTIFICATE, or USER_NAME and
// SECRET, which is a token where the mechanism is OAUTHBEARER.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	xdg "github.com/xdg-go/scram"
)

var values = []string{"one", "two"}

func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func encryption() *tls.Config {
	data, err := os.ReadFile(os.Getenv("CA"))
	must(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(data)
	config := &tls.Config{RootCAs: trusted}
	if file := os.Getenv("CERTIFICATE"); file != "" {
		certificate, err := tls.LoadX509KeyPair(file, file)
		must(err)
		config.Certificates = []tls.Certificate{certificate}
	}
	return config
}

func franzMechanism(name, user, secret string) sasl.Mechanism {
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: secret}.AsSha512Mechanism()
	}
	return oauth.Auth{Token: secret}.AsMechanism()
}

func franz(ctx context.Context, mechanism, address, queue string) []string {
	options := []kgo.Opt{
		kgo.SeedBrokers(address), kgo.DialTLSConfig(encryption()), kgo.ConsumeTopics(queue),
		kgo.AllowAutoTopicCreation(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if mechanism != "certificate" {
		how := franzMechanism(mechanism, os.Getenv("USER_NAME"), os.Getenv("SECRET"))
		options = append(options, kgo.SASL(how))
	}
	client, err := kgo.NewClient(options...)
	must(err)
	defer client.Close()
	for _, value := range values {
		must(client.ProduceSync(ctx, &kgo.Record{Topic: queue, Value: []byte(value)}).FirstErr())
	}
	var found []string
	for len(found) < len(values) {
		fetches := client.PollFetches(ctx)
		must(ctx.Err())
		for _, record := range fetches.Records() {
			found = append(found, string(record.Value))
		}
	}
	return found
}

// What sarama asks for: it has no SCRAM of its own.
type conversation struct {
	generator xdg.HashGeneratorFcn
	*xdg.ClientConversation
}

func (one *conversation) Begin(user, password, authorized string) error {
	client, err := one.generator.NewClient(user, password, authorized)
	if err == nil {
		one.ClientConversation = client.NewConversation()
	}
	return err
}

func byHash(generator xdg.HashGeneratorFcn) func() sarama.SCRAMClient {
	return func() sarama.SCRAMClient { return &conversation{generator: generator} }
}

type token string

func (one token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(one)}, nil
}

func byMechanism(config *sarama.Config, mechanism, user, secret string) {
	config.Net.SASL.Enable = true
	config.Net.SASL.Mechanism = sarama.SASLMechanism(mechanism)
	config.Net.SASL.User, config.Net.SASL.Password = user, secret
	switch mechanism {
	case "SCRAM-SHA-256":
		config.Net.SASL.SCRAMClientGeneratorFunc = byHash(sha256.New)
	case "SCRAM-SHA-512":
		config.Net.SASL.SCRAMClientGeneratorFunc = byHash(sha512.New)
	case "OAUTHBEARER":
		config.Net.SASL.TokenProvider = token(secret)
	}
}

func ofSarama(ctx context.Context, mechanism, address, queue string) []string {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Net.TLS.Enable, config.Net.TLS.Config = true, encryption()
	if mechanism != "certificate" {
		byMechanism(config, mechanism, os.Getenv("USER_NAME"), os.Getenv("SECRET"))
	}
	producer, err := sarama.NewSyncProducer([]string{address}, config)
	must(err)
	defer producer.Close()
	for _, value := range values {
		record := &sarama.ProducerMessage{Topic: queue, Value: sarama.StringEncoder(value)}
		_, _, err := producer.SendMessage(record)
		must(err)
	}
	consumer, err := sarama.NewConsumer([]string{address}, config)
	must(err)
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(queue, 0, sarama.OffsetOldest)
	must(err)
	var found []string
	for len(found) < len(values) {
		select {
		case record := <-partition.Messages():
			found = append(found, string(record.Value))
		case <-ctx.Done():
			must(ctx.Err())
		}
	}
	return found
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	work := map[string]func(context.Context, string, string, string) []string{
		"franz": franz, "sarama": ofSarama,
	}[os.Args[1]]
	fmt.Println(work(ctx, os.Args[2], os.Args[3], os.Args[4]))
}
