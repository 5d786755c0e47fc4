// The contract of the client programs (see the README beside), for those written in Go.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kerr"
)

// header is a name and a value; JSON has it as a list of the two.
type header struct {
	name  string
	value []byte
}

func (h header) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{h.name, h.value})
}

func (h *header) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.name, &h.value})
}

type record struct {
	Offset      int64    `json:"offset"`
	TimestampMs *int64   `json:"timestamp_ms"`
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []header `json:"headers"`
}

type origin struct {
	At          string `json:"at"`
	Offset      int64  `json:"offset"`
	TimestampMs int64  `json:"timestamp_ms"`
}

// ask holds the fields of every kind of request.
type ask struct {
	Do          string             `json:"do"`
	Servers     string             `json:"servers"`
	Topic       string             `json:"topic"`
	Partition   int32              `json:"partition"`
	Partitions  int32              `json:"partitions"`
	Total       int                `json:"total"`
	Configs     map[string]*string `json:"configs"`
	Records     []record           `json:"records"`
	Codec       string             `json:"codec"`
	Acks        string             `json:"acks"`
	Idempotent  *bool              `json:"idempotent"`
	From        origin             `json:"from"`
	Count       int                `json:"count"`
	TimestampMs int64              `json:"timestamp_ms"`
	Kind        string             `json:"kind"`
	Name        string             `json:"name"`
	Set         map[string]*string `json:"set"`
	Remove      []string           `json:"remove"`
	Before      int64              `json:"before"`

	Member         string   `json:"member"`
	Log            string   `json:"log"`
	Group          string   `json:"group"`
	Protocol       string   `json:"protocol"`
	Topics         []string `json:"topics"`
	Pattern        *string  `json:"pattern"`
	Instance       *string  `json:"instance"`
	SessionMs      int64    `json:"session_ms"`
	HeartbeatMs    int64    `json:"heartbeat_ms"`
	PollIntervalMs int64    `json:"poll_interval_ms"`
	Ms             int64    `json:"ms"`
}

type action func(ask) (any, error)

type refusal struct {
	Code *int16 `json:"code"`
	Text string `json:"text"`
}

// serve answers line by line until standard input ends.
func serve(actions map[string]action) error {
	lines := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil
		}
		var asked ask
		if err := json.Unmarshal(line, &asked); err != nil {
			return err
		}
		if err := answers.Encode(answer(actions, asked)); err != nil {
			return err
		}
	}
}

func answer(actions map[string]action, asked ask) map[string]any {
	found, ok := actions[asked.Do]
	if !ok {
		return map[string]any{"error": refusal{Text: fmt.Sprintf("no action %q", asked.Do)}}
	}
	result, err := found(asked)
	if err == nil {
		return map[string]any{"ok": result}
	}
	said := refusal{Text: err.Error()}
	var broker *kerr.Error
	if errors.As(err, &broker) {
		said.Code = &broker.Code
	}
	return map[string]any{"error": said}
}
