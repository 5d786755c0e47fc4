// A member of a consumer group: cooperative, eager, or balanced by the broker.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	pollTimeout    = 100 * time.Millisecond
	pollRecordsMax = 50
	commitTimeout  = 10 * time.Second
	clockMonotonic = 1
)

// memberLog has every line with the system at once, so that a kill loses none.
type memberLog struct {
	mu   sync.Mutex
	file *os.File
}

// nowNs reads the machine's monotonic clock, which the language hides.
func nowNs() int64 {
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

func (l *memberLog) write(event string, said map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	said["t"], said["e"] = nowNs(), event
	line, err := json.Marshal(said)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

type member struct {
	log          *memberLog
	client       *kgo.Client
	isLeaving    chan struct{}
	done         chan struct{}
	mu           sync.Mutex
	stalledUntil time.Time
}

var (
	membersMu sync.Mutex
	members   = map[string]*member{}
)

func join(asked ask) (any, error) {
	file, err := os.OpenFile(asked.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	m := &member{
		log:       &memberLog{file: file},
		isLeaving: make(chan struct{}),
		done:      make(chan struct{}),
	}
	m.log.write("began", map[string]any{
		"member": asked.Member, "group": asked.Group, "instance": asked.Instance,
		"protocol": asked.Protocol,
	})
	m.client, err = kgo.NewClient(m.options(asked)...)
	if err != nil {
		return nil, err
	}
	membersMu.Lock()
	members[asked.Member] = m
	membersMu.Unlock()
	go m.work()
	return nil, nil
}

func memberOf(asked ask) *member {
	membersMu.Lock()
	defer membersMu.Unlock()
	return members[asked.Member]
}

func stall(asked ask) (any, error) {
	m := memberOf(asked)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stalledUntil = time.Now().Add(time.Duration(asked.Ms) * time.Millisecond)
	return nil, nil
}

func leave(asked ask) (any, error) {
	m := memberOf(asked)
	close(m.isLeaving)
	select {
	case <-m.done:
		return nil, nil
	case <-time.After(timeout):
		return nil, errors.New("did not leave in time")
	}
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (m *member) options(asked ask) []kgo.Opt {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(asked.Servers, ",")...),
		kgo.ClientID(asked.Member),
		kgo.ConsumerGroup(asked.Group),
		kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.BlockRebalanceOnPoll(), // so that a rebalance waits for the batch in hand
		kgo.SessionTimeout(ms(asked.SessionMs)),
		kgo.HeartbeatInterval(ms(asked.HeartbeatMs)),
		kgo.RebalanceTimeout(ms(asked.PollIntervalMs)),
		kgo.MetadataMaxAge(time.Second),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.FetchMaxWait(pollTimeout),
		kgo.OnPartitionsAssigned(m.assigned),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			m.gone("revoked", parts)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			m.gone("lost", parts)
		}),
	}
	switch asked.Protocol {
	case "consumer":
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	case "cooperative":
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	default:
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	}
	if asked.Instance != nil {
		options = append(options, kgo.InstanceID(*asked.Instance))
	}
	if asked.Pattern != nil {
		return append(options, kgo.ConsumeRegex(), kgo.ConsumeTopics(*asked.Pattern))
	}
	return append(options, kgo.ConsumeTopics(asked.Topics...))
}

func (m *member) assigned(_ context.Context, client *kgo.Client, parts map[string][]int32) {
	_, generation := client.GroupMetadata()
	m.log.write("assigned", map[string]any{"parts": pairs(parts), "gen": generation})
}

func (m *member) gone(event string, parts map[string][]int32) {
	m.log.write(event, map[string]any{"parts": pairs(parts)})
}

func pairs(parts map[string][]int32) [][]any {
	told := [][]any{}
	for topic, partitions := range parts {
		for _, partition := range partitions {
			told = append(told, []any{topic, partition})
		}
	}
	return told
}

func (m *member) work() {
	defer close(m.done)
	for {
		select {
		case <-m.isLeaving:
			m.client.CloseAllowingRebalance()
			m.log.write("left", map[string]any{})
			return
		default:
		}
		if err := m.poll(); err != nil {
			m.log.write("error", map[string]any{"why": err.Error()})
			m.client.CloseAllowingRebalance()
			return
		}
	}
}

func (m *member) poll() error {
	ctx, cancel := context.WithTimeout(context.Background(), pollTimeout)
	defer cancel()
	fetches := m.client.PollRecords(ctx, pollRecordsMax)
	defer m.client.AllowRebalance()
	if fetches.IsClientClosed() { // whatever else it tells, it tries again by itself
		return kgo.ErrClientClosed
	}
	m.waitWhileStalled()
	offsets := map[string]map[int32]kgo.EpochOffset{}
	fetches.EachRecord(func(got *kgo.Record) {
		m.log.write("processed", map[string]any{
			"topic": got.Topic, "p": got.Partition, "o": got.Offset, "v": string(got.Value),
		})
		if offsets[got.Topic] == nil {
			offsets[got.Topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[got.Topic][got.Partition] = kgo.EpochOffset{Epoch: -1, Offset: got.Offset + 1}
	})
	if len(offsets) > 0 {
		m.commit(offsets)
	}
	return nil
}

func (m *member) waitWhileStalled() {
	for {
		m.mu.Lock()
		left := time.Until(m.stalledUntil)
		m.mu.Unlock()
		if left <= 0 {
			return
		}
		select {
		case <-m.isLeaving:
			return
		case <-time.After(min(left, pollTimeout)):
		}
	}
}

func (m *member) commit(offsets map[string]map[int32]kgo.EpochOffset) {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	began := nowNs()
	var said error
	m.client.CommitOffsetsSync(ctx, offsets, func(
		_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error,
	) {
		said = err
		if err != nil || answer == nil {
			return
		}
		for _, topic := range answer.Topics {
			for _, partition := range topic.Partitions {
				if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
					said = err
				}
			}
		}
	})
	told := [][]any{}
	for topic, partitions := range offsets {
		for partition, one := range partitions {
			told = append(told, []any{topic, partition, one.Offset})
		}
	}
	if said != nil {
		m.log.write("refused", map[string]any{"offsets": told, "why": said.Error()})
		return
	}
	m.log.write("committed", map[string]any{"from": began, "offsets": told})
}
