package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func createTopic(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	_, err = admin.CreateTopic(ctx, asked.Partitions, 1, asked.Configs, asked.Topic)
	return nil, err
}

func deleteTopic(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	_, err = admin.DeleteTopic(ctx, asked.Topic)
	return nil, err
}

func addPartitions(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	done, err := admin.UpdatePartitions(ctx, asked.Total, asked.Topic)
	if err != nil {
		return nil, err
	}
	return nil, done[asked.Topic].Err
}

func listTopics(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	topics, err := admin.ListTopics(ctx)
	return topics.Names(), err
}

func describeTopic(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	topics, err := admin.ListTopics(ctx, asked.Topic)
	if err != nil {
		return nil, err
	}
	topic := topics[asked.Topic]
	if topic.Err != nil {
		return nil, topic.Err
	}
	leaders, replicas := []int32{}, [][]int32{}
	for _, partition := range topic.Partitions.Sorted() {
		leaders = append(leaders, partition.Leader)
		replicas = append(replicas, partition.Replicas)
	}
	return map[string]any{
		"partitions": len(leaders), "leaders": leaders, "replicas": replicas,
	}, nil
}

func describeCluster(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	described, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return nil, err
	}
	brokers := []map[string]any{}
	for _, broker := range described.Brokers {
		brokers = append(brokers, map[string]any{
			"id": broker.NodeID, "host": broker.Host, "port": broker.Port,
		})
	}
	return map[string]any{"brokers": brokers, "controller": described.Controller}, nil
}

func offsets(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	told := map[string]int64{}
	listed := map[string]func() (kadm.ListedOffsets, error){
		"earliest": func() (kadm.ListedOffsets, error) {
			return admin.ListStartOffsets(ctx, asked.Topic)
		},
		"latest": func() (kadm.ListedOffsets, error) {
			return admin.ListEndOffsets(ctx, asked.Topic)
		},
		"at_time": func() (kadm.ListedOffsets, error) {
			return admin.ListOffsetsAfterMilli(ctx, asked.TimestampMs, asked.Topic)
		},
	}
	for name, list := range listed {
		all, err := list()
		if err != nil {
			return nil, err
		}
		found, ok := all.Lookup(asked.Topic, asked.Partition)
		if !ok {
			return nil, fmt.Errorf("nothing was told of %s-%d", asked.Topic, asked.Partition)
		}
		if found.Err != nil {
			return nil, found.Err
		}
		told[name] = found.Offset
	}
	return told, nil
}

func describeConfigs(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	var all kadm.ResourceConfigs
	if asked.Kind == "topic" {
		all, err = admin.DescribeTopicConfigs(ctx, asked.Name)
	} else {
		id, wrong := strconv.ParseInt(asked.Name, 10, 32)
		if wrong != nil {
			return nil, wrong
		}
		all, err = admin.DescribeBrokerConfigs(ctx, int32(id))
	}
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, errors.New("one resource was asked for")
	}
	told := map[string]any{}
	for _, entry := range all[0].Configs {
		told[entry.Key] = map[string]any{
			"value":        entry.Value,
			"is_default":   entry.Source == kmsg.ConfigSourceDefaultConfig,
			"is_read_only": nil,
		}
	}
	return told, all[0].Err
}

func alterConfigs(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	changes := []kadm.AlterConfig{}
	for name, value := range asked.Set {
		changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: value})
	}
	for _, name := range asked.Remove {
		changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name})
	}
	var done kadm.AlterConfigsResponses
	if asked.Kind == "topic" {
		done, err = admin.AlterTopicConfigs(ctx, changes, asked.Name)
	} else {
		id, wrong := strconv.ParseInt(asked.Name, 10, 32)
		if wrong != nil {
			return nil, wrong
		}
		done, err = admin.AlterBrokerConfigs(ctx, changes, int32(id))
	}
	if err != nil {
		return nil, err
	}
	return nil, done[0].Err
}

func deleteRecords(asked ask) (any, error) {
	admin, ctx, finish, err := administer(asked)
	if err != nil {
		return nil, err
	}
	defer finish()
	wanted := kadm.Offsets{}
	wanted.AddOffset(asked.Topic, asked.Partition, asked.Before, -1)
	done, err := admin.DeleteRecords(ctx, wanted)
	if err != nil {
		return nil, err
	}
	found, _ := done.Lookup(asked.Topic, asked.Partition)
	return found.LowWatermark, found.Err
}
