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
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// State is the kind of a change. For the status of a commit, it is a forge.CommitState.
type State string

// The states of a change.
const (
	Firing   State = "firing"   // a state has begun
	Resolved State = "resolved" // it has ended
	News     State = "news"     // an event happened
)

// change is one change of a topic of spec.alerting, as it is sent. A topic is a state, which begins and ends, or an event.
type change struct {
	Topic v1alpha1.AlertTopic `json:"topic"`
	// ConfigSync is the name of the ConfigSync that the change is about; empty if it is about the GatewaySync.
	ConfigSync string     `json:"configSync,omitempty"`
	State      State      `json:"state"`
	Severity   Severity   `json:"severity,omitempty"`
	Ref        string     `json:"ref,omitempty"`
	Commit     string     `json:"commit,omitempty"`
	Text       string     `json:"message"`
	Since      *time.Time `json:"since,omitempty"`
	// Next says what happens next, and the command that helps if there is one. Link is the commit at the git host.
	Next string `json:"next,omitempty"`
	Link string `json:"link,omitempty"`

	// recordIfAccepted is the record of the topic after the receiver has accepted the change, and recordIfUncertain if the receiver may have it.
	recordIfAccepted, recordIfUncertain string
	reason, incident                    string   // of the state
	ended                               []string // incidents that were sent before and hold no longer
}

// notice is one message about a GatewaySync.
type notice struct {
	Cluster     string   `json:"cluster,omitempty"`
	Namespace   string   `json:"namespace"`
	GatewaySync string   `json:"gatewaySync"`
	Page        string   `json:"page,omitempty"`
	Changes     []change `json:"changes"`

	uid string
}

// Bounds of messages, those of texts in bytes. No text has more characters than bytes.
const (
	// maxText bounds the text of a change.
	maxText = 1500
	// maxMessage bounds a message for Slack, which recommends at most 4,000 characters, and splits or cuts longer texts. It also bounds the
	// texts of the changes in a message for Teams.
	maxMessage = 4000
	// maxChanges bounds the changes of a message, so that each has room. The others follow with the next message.
	maxChanges = 8
	// maxSummary is the limit of PagerDuty.
	maxSummary = 1024
)

// maxRetryAfter bounds the Retry-After of a receiver.
const maxRetryAfter = time.Hour

// about returns what the message is about: cluster namespace/name.
func (n notice) about() string {
	return strings.TrimSpace(n.Cluster + " " + n.Namespace + "/" + n.GatewaySync)
}

type link struct{ text, url string }

// links returns the links for a change. Their addresses come from the operator and from package giturl.
func (n notice) links(c change) []link {
	var list []link
	if n.Page != "" {
		list = append(list, link{"page", n.Page})
	}
	if c.Link != "" {
		list = append(list, link{syntax.ShortCommit(c.Commit), c.Link})
	}
	return list
}

func (n notice) title(c change) string { return fmt.Sprintf("%s %s %s", n.about(), c.Topic, c.State) }

// credentials are the values of a webhook's Secrets.
type credentials struct{ url, integrationKey, signingKey, ca secret.String }

// pagerDutyURL is the public endpoint of PagerDuty's Events API v2.
const pagerDutyURL = "https://events.pagerduty.com/v2/enqueue"

// send sends n to a webhook. It returns the changes that the receiver accepted, also with an error.
func send(ctx context.Context, client httpclient.Client, kind v1alpha1.AlertType, c credentials, n notice, at time.Time) ([]change, error) {
	switch kind {
	case v1alpha1.AlertSlack:
		return allOrNone(n, post(ctx, client, c.url, nil, map[string]any{"text": slackText(n)}))
	case v1alpha1.AlertPagerDuty:
		if c.url.Empty() {
			c.url = secret.New(pagerDutyURL)
		}
		for i, one := range n.Changes {
			for j, event := range pagerDutyEvents(n, one, c.integrationKey) {
				err := post(ctx, client, c.url, nil, event)
				if _, rejected := errors.AsType[*statusError](err); err != nil && (j > 0 || !rejected) {
					err = &uncertainError{err}
				}
				if err != nil {
					return n.Changes[:i], err
				}
			}
		}
		return n.Changes, nil
	case v1alpha1.AlertTeams:
		return allOrNone(n, post(ctx, client, c.url, nil, teamsMessage(n)))
	}
	body, err := json.Marshal(cloudEvent(n, at))
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/cloudevents+json; charset=utf-8"}}
	if !c.signingKey.Empty() {
		httpclient.Sign(header, c.signingKey, body)
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

// uncertainError means that PagerDuty may have got a part of the change after the accepted ones.
type uncertainError struct{ error }

func (e *uncertainError) Unwrap() error { return e.error }

// post sends a body as JSON. A nil header is that of JSON.
func post(ctx context.Context, client httpclient.Client, to secret.String, header http.Header, body any) error {
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
	after, _ := httpclient.RetryAfter(answer.Header.Get("Retry-After"), time.Now(), maxRetryAfter)
	return &statusError{fmt.Sprintf("%s answered %d %s", u.Host, answer.Status, http.StatusText(answer.Status)), after}
}

// escapeSlack escapes a text for code in a message of Slack: the text comes from gateways and git. In code, Slack and programs with its
// format make no links of URLs and no mentions.
var escapeSlack = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'", "\n", " ")

// appearance is how a change looks: the emoji of Slack, and the color of Microsoft Teams.
type appearance struct{ icon, color string }

func (c change) appearance() appearance {
	switch {
	case c.State == Resolved:
		return appearance{":large_green_circle:", "Good"}
	case c.State == News:
		return appearance{":information_source:", "Accent"}
	case rank(c.Severity) < rank(Error):
		return appearance{":large_yellow_circle:", "Warning"}
	}
	return appearance{":red_circle:", "Attention"}
}

// minSlackText is how many bytes must remain for the text of a change; otherwise slackText leaves out what to do and the links.
const minSlackText = 300

// slackText returns the message for an incoming webhook, which cannot change a message later.
func slackText(n notice) string {
	var lines []string
	for _, c := range n.Changes {
		line := fmt.Sprintf("%s `%s` *%s %s*: `", c.appearance().icon, escapeSlack.Replace(n.about()), c.Topic, c.State)
		end := "`"
		if c.Next != "" {
			end += " next: `" + escapeSlack.Replace(c.Next) + "`"
		}
		for _, l := range n.links(c) {
			end += " <" + strings.ReplaceAll(l.url, "&", "&amp;") + "|" + l.text + ">"
		}
		room := maxMessage/len(n.Changes) - len(line) - 1
		if room-len(end) < minSlackText {
			end = "`"
		}
		lines = append(lines, line+cutEscaped(escapeSlack.Replace(c.Text), room-len(end))+end)
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

// pagerDutyEvents returns the events of the Events API v2 for a change. The dedup_key is that of the GatewaySync, the key of the change and
// the incident: the end of a state resolves the incident that the beginning opened, and a repetition changes nothing. If a state got worse, a
// new incident replaces the former one, because PagerDuty notifies no user of a change of an open one.
func pagerDutyEvents(n notice, c change, key secret.String) []map[string]any {
	event := func(action, incident string) map[string]any {
		return map[string]any{"routing_key": key.Reveal(), "dedup_key": strings.Join([]string{"stoker", n.uid, string(c.key()), incident}, "/"), "event_action": action}
	}
	var ends []map[string]any
	for _, incident := range c.ended {
		ends = append(ends, event("resolve", incident))
	}
	if c.State != Firing {
		return ends
	}
	trigger := event("trigger", c.incident)
	trigger["payload"] = map[string]any{
		"summary": failure.Cut(n.title(c)+": "+c.Text, maxSummary), "source": n.about(), "severity": c.Severity,
		"component": n.GatewaySync, "class": string(c.Topic), "custom_details": n,
	}
	var links []map[string]string
	for _, l := range n.links(c) {
		links = append(links, map[string]string{"href": l.url, "text": l.text})
	}
	if len(links) > 0 {
		trigger["links"] = links
	}
	return append([]map[string]any{trigger}, ends...)
}

// teamsMessage returns the message for a workflow of Microsoft Teams: an Adaptive Card. A TextRun has no Markdown, and so no links.
func teamsMessage(n notice) map[string]any {
	var body, actions []any
	var links []link
	for _, c := range n.Changes {
		for _, l := range n.links(c) {
			if !slices.Contains(links, l) {
				links = append(links, l)
			}
		}
		text := failure.Cut(c.Text, maxMessage/len(n.Changes))
		if c.Next != "" {
			text += "; next: " + c.Next
		}
		body = append(body, map[string]any{"type": "RichTextBlock", "inlines": []any{
			map[string]any{"type": "TextRun", "text": n.title(c) + ": ", "weight": "Bolder", "color": c.appearance().color},
			map[string]any{"type": "TextRun", "text": text},
		}})
	}
	for _, l := range links {
		actions = append(actions, map[string]any{"type": "Action.OpenUrl", "title": l.text, "url": l.url})
	}
	card := map[string]any{"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.2", "body": body}
	if len(actions) > 0 {
		card["actions"] = actions
	}
	return map[string]any{"type": "message", "attachments": []any{map[string]any{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}}}
}

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
		fmt.Fprintln(h, c.key(), c.State, c.recordIfAccepted)
		if c.Since != nil {
			fmt.Fprintln(h, c.Since.Unix())
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
