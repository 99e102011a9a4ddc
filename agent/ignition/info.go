package ignition

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// States on the gateway's status page [LIVE 8.3.6]. There may be others; they count as not running.
const (
	StateRunning = "RUNNING"
	// DetailCommissioning accompanies RUNNING while the gateway waits for its commissioning and is not usable.
	DetailCommissioning = "COMMISSIONING"
)

// Ping is the state of a gateway.
type Ping struct {
	State, Details string
	// Date is the gateway's clock in whole seconds, or zero if the response has none.
	Date time.Time
}

// Running reports whether the gateway is usable.
func (p Ping) Running() bool { return p.State == StateRunning && p.Details != DetailCommissioning }

// Commissioning reports whether the gateway waits for a user to commission it.
func (p Ping) Commissioning() bool { return p.Details == DetailCommissioning }

func (p Ping) String() string {
	if p.Details == "" {
		return p.State
	}
	return p.State + "/" + p.Details
}

// Ping returns the gateway's state. It needs no API key: GET /StatusPing [LIVE 8.3.6]. Without a state, the error is
// GatewayUnreachable, WaitingForGateway (503) or WaitingForCommissioning (a redirect to the welcome page).
func (c *Client) Ping(ctx context.Context) (Ping, error) {
	r := call{method: http.MethodGet, path: "/StatusPing", public: true}
	got, err := c.do(ctx, r)
	if err != nil {
		return Ping{}, err
	}
	doc, err := decode[struct {
		State   text `json:"state"`
		Details text `json:"details"`
	}](c, r, got)
	if err != nil {
		return Ping{}, err
	}
	if doc.State == "" {
		return Ping{}, failure.New(v1alpha1.ReasonGatewayUnreachable,
			"%s returns no state at /StatusPing: is this an Ignition gateway?", c.base)
	}
	p := Ping{State: oneLine(string(doc.State), 40), Details: oneLine(string(doc.Details), 40)}
	if date, err := http.ParseTime(got.header.Get("Date")); err == nil {
		p.Date = date
	}
	return p, nil
}

// Info describes a gateway.
type Info struct {
	Name string
	// DeploymentMode is the active mode, or empty if the gateway runs on core alone.
	DeploymentMode string
}

// Info returns the gateway's name and mode: GET /data/api/v1/gateway-info [SPEC].
func (c *Client) Info(ctx context.Context) (Info, error) {
	doc, err := get[struct {
		Name           text `json:"name"`
		DeploymentMode text `json:"deploymentMode"`
	}](ctx, c, "/data/api/v1/gateway-info", nil)
	return Info{Name: doc.Name.name(), DeploymentMode: doc.DeploymentMode.name()}, err
}

// PendingRestarts lists changes that take effect only after a restart: GET /data/api/v1/restart-tasks/pending [SPEC].
func (c *Client) PendingRestarts(ctx context.Context) ([]string, error) {
	doc, err := get[struct {
		Pending items[text] `json:"pending"`
	}](ctx, c, "/data/api/v1/restart-tasks/pending", nil)
	if err != nil {
		return nil, err
	}
	var tasks []string
	for _, p := range doc.Pending {
		tasks = append(tasks, oneLine(string(p), maxMessage))
	}
	return tasks, nil
}

// TrialExpired reports whether the gateway has no license and its trial is over: GET /data/api/v1/trial [SPEC].
func (c *Client) TrialExpired(ctx context.Context) (bool, error) {
	doc, err := get[struct {
		LicenseMode text `json:"licenseMode"`
		Expired     bool `json:"expired"`
	}](ctx, c, "/data/api/v1/trial", nil)
	return err == nil && doc.Expired && (doc.LicenseMode == "Trial" || doc.LicenseMode == ""), err
}

// Version is the version of an Ignition platform. The zero value is an unknown version.
type Version struct{ Major, Minor, Patch int }

// ParseVersion parses the version at the beginning of a text such as "8.3.6 (b2026042713)". It returns the zero Version
// for anything else.
func ParseVersion(s string) Version {
	s, _, _ = strings.Cut(strings.TrimSpace(s), " ")
	s, _, _ = strings.Cut(s, "-")
	parts := strings.Split(s, ".")
	var numbers [3]int
	for i, p := range parts[:min(len(parts), 3)] {
		n, err := strconv.ParseUint(p, 10, 15)
		if err != nil {
			return Version{}
		}
		numbers[i] = int(n)
	}
	return Version{numbers[0], numbers[1], numbers[2]}
}

// IsZero reports whether the version is unknown.
func (v Version) IsZero() bool { return v == Version{} }

// AtLeast reports whether v is major.minor or later.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// LogLine is a line of the gateway's log.
type LogLine struct {
	Logger  string
	Message string // one line, at most 300 characters
}

// maxLogLines bounds one read of the log. A report needs only the newest lines, and a busy gateway always logs.
const maxLogLines = 200

// ErrorsSince returns at most 200 log lines of level ERROR that are not older than since: GET /data/api/v1/logs [SPEC].
// since is a time of the gateway's clock, such as ScanStatus.Last or Ping.Date.
func (c *Client) ErrorsSince(ctx context.Context, since time.Time) ([]LogLine, error) {
	query := map[string][]string{
		"startTime": {strconv.FormatInt(since.UnixMilli(), 10)},
		"minLevel":  {"ERROR"},
		"limit":     {strconv.Itoa(maxLogLines)},
	}
	doc, err := get[page[struct {
		Timestamp  stamp `json:"timestamp"`
		LoggerName text  `json:"loggerName"`
		Level      text  `json:"level"`
		Message    text  `json:"message"`
	}]](ctx, c, "/data/api/v1/logs", query)
	if err != nil {
		return nil, err
	}
	var lines []LogLine
	for _, item := range doc.Items[:min(len(doc.Items), maxLogLines)] {
		// A gateway ignores parameters that it does not know, so filter here too.
		if item.Level != "ERROR" || item.Timestamp.Before(since) {
			continue
		}
		lines = append(lines, LogLine{Logger: oneLine(string(item.LoggerName), 200), Message: oneLine(string(item.Message), maxMessage)})
	}
	return lines, nil
}

// Platform is what a gateway of any version reveals without a token. Unknown fields are empty.
type Platform struct {
	Version Version
	// Role is the node's role in a redundant pair: Independent, Master or Backup.
	Role string
}

// Platform returns version and role: GET /system/gwinfo [IA]. It returns the zero Platform if the response is not that of a
// gateway.
func (c *Client) Platform(ctx context.Context) (Platform, error) {
	got, err := c.do(ctx, call{method: http.MethodGet, path: "/system/gwinfo", public: true})
	if err != nil {
		return Platform{}, err
	}
	return parsePlatform(string(got.body)), nil
}

// parsePlatform parses text of the form key=value;… [IA].
func parsePlatform(body string) Platform {
	var p Platform
	for pair := range strings.SplitSeq(body, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch strings.TrimSpace(key) {
		case "Version":
			p.Version = ParseVersion(value)
		case "RedundancyStatus":
			p.Role = oneLine(value, 40)
		}
	}
	return p
}

// text is a JSON string, or a number or boolean as written; other values become "". The vendor's document does not give
// the type of every field, and a field that is only shown must not make a whole response unreadable.
type text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(raw []byte) error {
	raw = bytes.TrimSpace(raw)
	*t = ""
	if len(raw) == 0 {
		return nil
	}
	switch raw[0] {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		*t = text(s)
	case '{', '[', 'n': // n begins null
	default:
		*t = text(raw)
	}
	return nil
}

// maxName is the length in bytes of the longest name of a directory, such as that of a project or a deployment mode.
const maxName = 255

// name returns the text as the name of a directory. A text that is too long for one, or not printable, becomes short and printable, and has a
// slash, so that it equals no name.
func (t text) name() string {
	s := string(t)
	if len(s) <= maxName && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r) }) {
		return s
	}
	return oneLine(s, 100) + "/…"
}

// stamp is a time of the gateway: milliseconds since 1970 as a number [SPEC], or a text in RFC 3339. Anything else
// becomes the zero time.
type stamp struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (s *stamp) UnmarshalJSON(raw []byte) error {
	var t text
	if err := t.UnmarshalJSON(raw); err != nil {
		return err
	}
	s.Time = time.Time{}
	if ms, err := strconv.ParseInt(string(t), 10, 64); err == nil {
		if ms > 0 {
			s.Time = time.UnixMilli(ms)
		}
	} else if at, err := time.Parse(time.RFC3339Nano, string(t)); err == nil {
		s.Time = at
	}
	return nil
}
