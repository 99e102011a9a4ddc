package simulator

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"stoker.io/stoker/test/gateway/simulator/ordered"
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

// LogBook is the gateway's log. When it exceeds maxLogLines, it keeps only the newest half.
type LogBook struct {
	clock *clock
	mu    sync.Mutex
	lines []logLine
}

func (b *LogBook) add(level logLevel, logger, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, logLine{b.clock.now(), level, logger, message})
	if len(b.lines) > maxLogLines {
		b.lines = slices.Clone(b.lines[len(b.lines)-maxLogLines/2:])
	}
}

// since returns the first limit lines that are not older than from, in the gateway's clock, have at least the level
// minLevel, and come from logger, or from any if it is "".
func (b *LogBook) since(from time.Time, minLevel logLevel, logger string, limit int) []logLine {
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

// Error adds a line of level ERROR.
func (b *LogBook) Error(logger, message string) { b.add(levelError, logger, message) }

// get answers the lines that a request selects.
func (b *LogBook) get(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	start, _ := strconv.ParseInt(q.Get("startTime"), 10, 64)
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil || limit < 0 {
		limit = 100
	}
	lines := b.since(time.UnixMilli(start), parseLevel(q.Get("minLevel")), q.Get("logger"), limit)
	items := make(ordered.Array, 0, len(lines))
	for _, l := range lines {
		items = append(items, ordered.Object{
			{"timestamp", b.clock.moment(l.at)}, {"loggerName", l.logger}, {"level", l.level.String()}, {"message", l.message},
		})
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"items", items}})
}
