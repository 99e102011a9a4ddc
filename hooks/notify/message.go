package notify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/outbound"
	"stoker.io/stoker/internal/secret"
)

// State is the kind of a change.
type State string

// The states of a change.
const (
	Firing   State = "firing"   // a state has begun
	Resolved State = "resolved" // it has ended
	News     State = "news"     // something happened
)

// change is one change of a topic, as it is sent.
type change struct {
	Topic v1alpha1.AlertTopic `json:"on"`
	State State               `json:"state"`
	Text  string              `json:"message"`
	Since *time.Time          `json:"since,omitempty"`

	sent string // the record of the topic after the receiver has accepted the change
}

// notice is one message about a GatewaySync.
type notice struct {
	Namespace   string   `json:"namespace"`
	GatewaySync string   `json:"gatewaySync"`
	Ref         string   `json:"ref,omitempty"`
	Commit      string   `json:"commit,omitempty"`
	Changes     []change `json:"changes"`

	uid string
}

// Bounds in bytes. No text has more characters than bytes.
const (
	// maxText bounds the text of a change.
	maxText = 1500
	// maxSlack bounds a message for Slack, which recommends at most 4,000 characters, and splits or cuts longer texts.
	maxSlack = 4000
	// maxSummary is the limit of PagerDuty.
	maxSummary = 1024
)

// maxRetryAfter bounds the Retry-After of a receiver.
const maxRetryAfter = time.Hour

func (n notice) title(c change) string {
	return fmt.Sprintf("%s/%s %s %s", n.Namespace, n.GatewaySync, c.Topic, c.State)
}

// credentials are the values of a webhook's Secrets.
type credentials struct{ url, integrationKey, signingKey secret.String }

// pagerDutyURL is the public endpoint of PagerDuty's Events API v2.
const pagerDutyURL = "https://events.pagerduty.com/v2/enqueue"

// send sends n to a webhook. It returns the changes that the receiver accepted, also with an error.
func send(ctx context.Context, client outbound.Client, kind v1alpha1.AlertType, c credentials, n notice, at time.Time) ([]change, error) {
	switch kind {
	case v1alpha1.AlertSlack:
		return allOrNone(n, post(ctx, client, c.url, nil, map[string]any{"text": slackText(n)}))
	case v1alpha1.AlertPagerDuty:
		if c.url.Empty() {
			c.url = secret.New(pagerDutyURL)
		}
		for i, one := range n.Changes {
			if err := post(ctx, client, c.url, nil, pagerDutyEvent(n, one, c.integrationKey)); err != nil {
				return n.Changes[:i], err
			}
		}
		return n.Changes, nil
	}
	body, err := json.Marshal(cloudEvent(n, at))
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/cloudevents+json; charset=utf-8"}}
	if !c.signingKey.Empty() {
		outbound.Sign(header, c.signingKey, body)
	}
	return allOrNone(n, post(ctx, client, c.url, header, json.RawMessage(body)))
}

// allOrNone returns all changes, or none with an error.
func allOrNone(n notice, err error) ([]change, error) {
	if err != nil {
		return nil, err
	}
	return n.Changes, nil
}

// statusError means that the receiver did not accept a message. retryAfter is the pause that it asks for, or 0.
type statusError struct {
	status     string
	retryAfter time.Duration
}

func (e *statusError) Error() string { return e.status }

// post sends a body as JSON. A nil header is that of JSON.
func post(ctx context.Context, client outbound.Client, to secret.String, header http.Header, body any) error {
	u, err := url.Parse(to.Reveal())
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return errors.New("the Secret does not contain an https URL") // err has the URL, which is a credential
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if header == nil {
		header = http.Header{"Content-Type": {"application/json"}}
	}
	answer, err := client.Do(ctx, http.MethodPost, u.String(), header, text)
	if err != nil {
		return err
	}
	if answer.Status/100 == 2 {
		return nil
	}
	return &statusError{fmt.Sprintf("%s answered %d %s", u.Host, answer.Status, http.StatusText(answer.Status)), retryAfter(answer.Header.Get("Retry-After"), time.Now())}
}

// retryAfter returns the pause that a receiver asks for, in seconds or until a time, of at most an hour.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return min(max(time.Duration(seconds)*time.Second, 0), maxRetryAfter)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// escapeSlack escapes what Slack reads as a link or a mention: the text comes from gateways and git.
var escapeSlack = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

var slackIcons = map[State]string{Firing: ":red_circle:", Resolved: ":large_green_circle:", News: ":information_source:"}

// slackText returns the message for an incoming webhook, which cannot change a message later.
func slackText(n notice) string {
	var lines []string
	for _, c := range n.Changes {
		line := fmt.Sprintf("%s *%s*: %s", slackIcons[c.State], escapeSlack.Replace(n.title(c)), escapeSlack.Replace(c.Text))
		lines = append(lines, cutEscaped(line, maxSlack/len(n.Changes)-1))
	}
	return strings.Join(lines, "\n")
}

// cutEscaped cuts an escaped text to n bytes, but never within an escape sequence.
func cutEscaped(s string, n int) string {
	cut := failure.Cut(s, n)
	if i := strings.LastIndexByte(cut, '&'); cut != s && i >= 0 && !strings.Contains(cut[i:], ";") {
		return cut[:i] + "…"
	}
	return cut
}

// pagerDutyEvent returns an event of the Events API v2. Its dedup_key is that of the GatewaySync and the topic: the end of a
// state resolves the incident that the beginning opened, and a repetition changes nothing.
func pagerDutyEvent(n notice, c change, key secret.String) map[string]any {
	e := map[string]any{"routing_key": key.Reveal(), "dedup_key": "stoker/" + n.uid + "/" + string(c.Topic), "event_action": "resolve"}
	if c.State == Firing {
		e["event_action"] = "trigger"
		e["payload"] = map[string]any{
			"summary": failure.Cut(n.title(c)+": "+c.Text, maxSummary), "source": n.Namespace + "/" + n.GatewaySync, "severity": "error",
			"component": n.GatewaySync, "class": string(c.Topic), "custom_details": n,
		}
	}
	return e
}

// cloudEvent returns a CloudEvent.
func cloudEvent(n notice, at time.Time) map[string]any {
	return map[string]any{
		"specversion": "1.0", "id": n.id(), "type": "io.stoker.gatewaysync", "time": at.UTC().Format(time.RFC3339), "datacontenttype": "application/json",
		"source": "/apis/" + v1alpha1.GroupVersion.String() + "/namespaces/" + n.Namespace + "/gatewaysyncs/" + n.GatewaySync, "data": n,
	}
}

// id returns an id that is the same if the notice is sent again, so that the receiver can ignore it.
func (n notice) id() string {
	h := sha256.New()
	fmt.Fprintln(h, n.uid)
	for _, c := range n.Changes {
		fmt.Fprintln(h, c.Topic, c.State, c.sent)
		if c.Since != nil {
			fmt.Fprintln(h, c.Since.Unix())
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
