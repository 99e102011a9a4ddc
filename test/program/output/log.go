// Package output collects the output of a running program of this module for the tests, the demo and the benchmark.
package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
)

// Log collects what is written to it, and can be read at any time. The zero value keeps everything.
type Log struct {
	// MaxBytes is how many bytes to keep at the end; 0 means all.
	MaxBytes int

	mu        sync.Mutex
	kept      []byte
	line      []byte            // the current, incomplete line
	addresses map[string]string // by server
}

// maxLine is the length up to which Log looks for an address in a line. The lines with addresses are shorter.
const maxLine = 4 << 10

// Write implements io.Writer. It never fails.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, b...)
	if l.MaxBytes > 0 {
		l.kept = l.kept[max(0, len(l.kept)-l.MaxBytes):]
	}
	for rest := b; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		if len(l.line)+len(part) <= maxLine {
			l.line = append(l.line, part...)
		}
		if ended {
			l.parseAddress(l.line)
			l.line = l.line[:0]
		}
		rest = after
	}
	return len(b), nil
}

// parseAddress records the address of a server from a line of a JSON log.
func (l *Log) parseAddress(line []byte) {
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

// Tail returns what was kept, without surrounding space, for an error message.
func (l *Log) Tail() string { return strings.TrimSpace(l.String()) }

// Address returns the address of a server from the program's JSON log, or "" before the program has logged it. A program
// that listens on port 0 cannot collide with other processes.
func (l *Log) Address(server string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addresses[server]
}
