package simulator

import (
	"slices"
	"sync"
	"time"
)

type logLevel int

const (
	levelInfo logLevel = iota
	levelWarn
	levelError
)

func (l logLevel) String() string { return []string{"INFO", "WARN", "ERROR"}[l] }

// parseLevel parses a minimum level. Levels below INFO, which the simulator never logs, mean INFO.
func parseLevel(s string) logLevel {
	for _, l := range []logLevel{levelWarn, levelError} {
		if s == l.String() {
			return l
		}
	}
	return levelInfo
}

type logLine struct {
	at      time.Time
	level   logLevel
	logger  string
	message string
}

const maxLogLines = 5000

// logBook is the gateway's log. When it exceeds maxLogLines, it keeps only the newest half.
type logBook struct {
	now   func() time.Time
	mu    sync.Mutex
	lines []logLine
}

func (b *logBook) add(level logLevel, logger, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, logLine{b.now(), level, logger, message})
	if len(b.lines) > maxLogLines {
		b.lines = slices.Clone(b.lines[len(b.lines)-maxLogLines/2:])
	}
}

// since returns the first limit lines that are not older than from, in the gateway's clock, have at least the level
// minLevel, and come from logger, or from any if it is "".
func (b *logBook) since(from time.Time, minLevel logLevel, logger string, limit int) []logLine {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []logLine
	for _, l := range b.lines {
		if len(found) == limit {
			break
		}
		at := l.at.Truncate(time.Millisecond) // the precision of the REST interface
		if !at.Before(from) && l.level >= minLevel && (logger == "" || l.logger == logger) {
			found = append(found, l)
		}
	}
	return found
}

// Log adds a line of level ERROR to the gateway's log.
func (g *Gateway) Log(logger, message string) { g.logs.add(levelError, logger, message) }
