package simulator

import (
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

// logBook is the gateway's log. It drops the oldest lines.
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
		b.lines = append([]logLine(nil), b.lines[len(b.lines)-maxLogLines/2:]...)
	}
}

// since returns at most limit lines from a time of the gateway's clock on, oldest first.
func (b *logBook) since(at time.Time, least logLevel, logger string, limit int) []logLine {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []logLine
	for _, l := range b.lines {
		if len(found) < limit && !l.at.Truncate(time.Millisecond).Before(at) && l.level >= least && (logger == "" || l.logger == logger) {
			found = append(found, l)
		}
	}
	return found
}

// Log adds a line of level ERROR to the gateway's log, as a busy gateway constantly does.
func (g *Gateway) Log(logger, message string) { g.logs.add(levelError, logger, message) }
