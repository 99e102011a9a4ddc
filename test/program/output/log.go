// Package output keeps what a program of this module says while it runs, for who started it: a test, the demo, the bench.
package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
)

// Log collects what is written to it, and can be read meanwhile. The zero value keeps everything.
type Log struct {
	// Most bounds what is kept, in bytes: the end. 0 is everything.
	Most int

	mu        sync.Mutex
	kept      []byte
	line      []byte            // the one that has begun
	addresses map[string]string // by what listens there
}

// lineBytes bounds the line that is kept to look for an address; no line of ours that names one is as long.
const lineBytes = 4 << 10

// Write never fails.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, b...)
	if l.Most > 0 {
		l.kept = l.kept[max(0, len(l.kept)-l.Most):]
	}
	for rest := b; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		if len(l.line)+len(part) <= lineBytes {
			l.line = append(l.line, part...)
		}
		if ended {
			l.read(l.line)
			l.line = l.line[:0]
		}
		rest = after
	}
	return len(b), nil
}

// read learns from a line of JSON where a server listens.
func (l *Log) read(line []byte) {
	if !bytes.Contains(line, []byte(`"listening"`)) {
		return
	}
	var entry struct{ Msg, For, Address string }
	if json.Unmarshal(line, &entry) != nil || entry.Msg != "listening" {
		return
	}
	if l.addresses == nil {
		l.addresses = map[string]string{}
	}
	if _, ok := l.addresses[entry.For]; !ok {
		l.addresses[entry.For] = entry.Address
	}
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.kept)
}

// Tail is the end of it, without spaces around, for an error message.
func (l *Log) Tail() string { return strings.TrimSpace(l.String()) }

// Address is where a server of the project listens, by its log in JSON; "" where it does not say so (yet). Who asks for port
// 0 and reads here which one it was cannot lose it to another process in between.
func (l *Log) Address(of string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addresses[of]
}
