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
	// Most is how many bytes to keep at the end; 0 means all.
	Most int

	mu        sync.Mutex
	kept      []byte
	line      []byte            // the current, incomplete line
	addresses map[string]string // by server
}

// lineBytes bounds the line in which to look for an address. Our lines with addresses are shorter.
const lineBytes = 4 << 10

// Write implements io.Writer. It never fails.
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

// read takes the address of a server from a line of a JSON log.
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

// Tail returns what was kept, without surrounding space, for an error message.
func (l *Log) Tail() string { return strings.TrimSpace(l.String()) }

// Address returns the address of a server according to the program's JSON log, or "" if it is not there (yet). With port 0 and
// Address, no other process can take the port in between.
func (l *Log) Address(of string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addresses[of]
}
