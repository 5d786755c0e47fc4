// franz-go by the contract of the client programs.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const timeout = 30 * time.Second

// Higher than any broker's limit, so that it is the broker who refuses.
const messageBytesMax = 64 << 20

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

var acks = map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}

func main() {
	err := serve(map[string]action{
		"hello":            hello,
		"create_topic":     createTopic,
		"delete_topic":     deleteTopic,
		"add_partitions":   addPartitions,
		"list_topics":      listTopics,
		"describe_topic":   describeTopic,
		"describe_cluster": describeCluster,
		"produce":          produce,
		"consume":          consume,
		"offsets":          offsets,
		"describe_configs": describeConfigs,
		"alter_configs":    alterConfigs,
		"delete_records":   deleteRecords,
		"join":             join,
		"stall":            stall,
		"leave":            leave,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func hello(ask) (any, error) {
	version := "unknown"
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if strings.HasSuffix(module.Path, "/franz-go") {
				version = module.Version
			}
		}
	}
	return map[string]string{"client": "franz-go", "version": version}, nil
}

func connect(asked ask, options ...kgo.Opt) (*kgo.Client, context.Context, func(), error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	options = append(options, kgo.SeedBrokers(strings.Split(asked.Servers, ",")...))
	client, err := kgo.NewClient(options...)
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	return client, ctx, func() { client.Close(); cancel() }, nil
}

func produce(asked ask) (any, error) {
	options := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[asked.Codec]),
		kgo.RequiredAcks(acks[asked.Acks]),
		kgo.ProducerBatchMaxBytes(messageBytesMax),
		kgo.ProducerLinger(20 * time.Millisecond),
		kgo.AllowAutoTopicCreation(),
	}
	isPlain := asked.Idempotent != nil && !*asked.Idempotent
	if isPlain || asked.Acks != "all" { // it insists on all acknowledgements otherwise
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, ctx, finish, err := connect(asked, options...)
	if err != nil {
		return nil, err
	}
	defer finish()
	results := client.ProduceSync(ctx, toSend(asked)...)
	if err := results.FirstErr(); err != nil {
		return nil, err
	}
	told := make([]int64, len(results))
	for n, result := range results {
		told[n] = result.Record.Offset
		if asked.Acks == "0" {
			told[n] = -1
		}
	}
	return told, nil
}

func toSend(asked ask) []*kgo.Record {
	records := make([]*kgo.Record, len(asked.Records))
	for n, given := range asked.Records {
		records[n] = &kgo.Record{
			Topic: asked.Topic, Partition: asked.Partition, Key: given.Key, Value: given.Value,
		}
		if given.TimestampMs != nil {
			records[n].Timestamp = time.UnixMilli(*given.TimestampMs)
		}
		for _, one := range given.Headers {
			added := kgo.RecordHeader{Key: one.name, Value: one.value}
			records[n].Headers = append(records[n].Headers, added)
		}
	}
	return records
}

func startOf(from origin) kgo.Offset {
	switch from.At {
	case "beginning":
		return kgo.NewOffset().AtStart()
	case "offset":
		return kgo.NewOffset().At(from.Offset)
	default:
		return kgo.NewOffset().AfterMilli(from.TimestampMs)
	}
}

func consume(asked ask) (any, error) {
	start := map[int32]kgo.Offset{asked.Partition: startOf(asked.From)}
	partitions := map[string]map[int32]kgo.Offset{asked.Topic: start}
	client, ctx, finish, err := connect(asked,
		kgo.ConsumePartitions(partitions), kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	if err != nil {
		return nil, err
	}
	defer finish()
	records := []record{}
	for len(records) < asked.Count {
		fetches := client.PollRecords(ctx, asked.Count-len(records))
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("%d records came: %w", len(records), err)
		}
		fetches.EachRecord(func(got *kgo.Record) { records = append(records, received(got)) })
	}
	return records, nil
}

func received(got *kgo.Record) record {
	timestampMs := got.Timestamp.UnixMilli()
	one := record{
		Offset: got.Offset, TimestampMs: &timestampMs, Key: got.Key, Value: got.Value,
		Headers: []header{},
	}
	for _, given := range got.Headers {
		one.Headers = append(one.Headers, header{name: given.Key, value: given.Value})
	}
	return one
}

func administer(asked ask) (*kadm.Client, context.Context, func(), error) {
	client, ctx, finish, err := connect(asked)
	if err != nil {
		return nil, nil, nil, err
	}
	return kadm.NewClient(client), ctx, finish, nil
}
