package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// maxPending bounds the events of a topic that wait to be sent, and maxIncidents the incidents in a report. The oldest are dropped.
const maxPending, maxIncidents = 8, 8

// channel is one receiver of the notifications about one GatewaySync.
type channel struct {
	gs      *v1alpha1.GatewaySync
	webhook *v1alpha1.AlertWebhook
	busy    bool // a message is on its way
	// sent is the record: the report of a state that was sent as firing, or a digest of the last event. pausedSince has a time, and
	// commitStatus what dueStatus describes.
	sent map[v1alpha1.AlertTopic]string
	// pending has the events that were not sent yet, oldest first.
	pending map[v1alpha1.AlertTopic][]pendingEvent
	// changedAt is the time at which a state began to differ from sent, and absentAt when it was last seen not to hold.
	changedAt, absentAt map[v1alpha1.AlertTopic]time.Time
	nextSend            time.Time // no message before
	failures            int       // since the last message that was accepted
	// configSyncs has the ConfigSyncs of the namespace by name, if a topic is about them and they are known.
	configSyncs      map[string]*v1alpha1.ConfigSync
	knowsConfigSyncs bool
	underWay         map[v1alpha1.AlertTopic]bool // keys of ConfigSyncs that are neither ready nor failed
}

// pendingEvent is an event as it was when it was seen.
type pendingEvent struct {
	change
	at time.Time
}

func newChannel(sent map[v1alpha1.AlertTopic]string) *channel {
	ch := &channel{sent: map[v1alpha1.AlertTopic]string{}, pending: map[v1alpha1.AlertTopic][]pendingEvent{},
		changedAt: map[v1alpha1.AlertTopic]time.Time{}, absentAt: map[v1alpha1.AlertTopic]time.Time{}}
	maps.Copy(ch.sent, sent)
	return ch
}

// next returns when a change may be due, or false if there is none, or while a message is on its way.
func (ch *channel) next(settle time.Duration) (time.Time, bool) {
	var times []time.Time
	for key, t := range ch.changedAt {
		if !ch.underWay[key] {
			times = append(times, t.Add(settle))
		}
	}
	for _, list := range ch.pending {
		for _, p := range list {
			times = append(times, p.at)
		}
	}
	if len(times) == 0 || ch.busy {
		return time.Time{}, false
	}
	first := slices.MinFunc(times, time.Time.Compare)
	if first.Before(ch.nextSend) {
		first = ch.nextSend
	}
	return first, true
}

// due returns the changes since the record that are due: events, and states that have lasted for settle.
func (ch *channel) due(now time.Time, settle time.Duration) []change {
	in := newInput(ch.gs, now)
	if ch.webhook.Type == v1alpha1.AlertCommitStatus {
		return ch.dueStatus(in, settle)
	}
	in.pausedSince = ch.pausedSince(in)
	var changes, ofConfigSyncs []change
	wanted := map[v1alpha1.AlertTopic]bool{}
	for _, name := range ch.webhook.Wanted() {
		t, ok := topicOf(name)
		if !ok || wanted[t.name] {
			continue
		}
		wanted[t.name] = true
		switch {
		case t.event != nil:
			changes = append(changes, ch.unsentEvents(t, in)...)
		case t.name == configSyncNotReady:
			ofConfigSyncs = ch.dueConfigSyncs(t, now, settle)
		default:
			changes = append(changes, ch.dueState(t, in, settle)...)
		}
	}
	wanted[pausedSince] = wanted[pausedForLong]
	changes = append(changes, ch.endUnwanted(wanted)...)
	maps.DeleteFunc(ch.pending, func(name v1alpha1.AlertTopic, _ []pendingEvent) bool { return !wanted[name] })
	maps.DeleteFunc(ch.changedAt, func(key v1alpha1.AlertTopic, _ time.Time) bool { return !wanted[topicOfKey(key)] })
	maps.DeleteFunc(ch.absentAt, func(key v1alpha1.AlertTopic, _ time.Time) bool { return !wanted[topicOfKey(key)] })
	return append(changes, ofConfigSyncs...)
}

// endUnwanted returns the ends of the states whose topics are not wanted, and deletes the other records of such topics.
func (ch *channel) endUnwanted(wanted map[v1alpha1.AlertTopic]bool) (changes []change) {
	for _, key := range slices.Sorted(maps.Keys(ch.sent)) {
		name := topicOfKey(key)
		t, _ := topicOf(name)
		switch {
		case wanted[name]:
		case t.state == nil:
			delete(ch.sent, key)
		default:
			_, configSync, _ := strings.Cut(string(key), "/")
			reported := decodeReport(ch.sent[key])
			changes = append(changes, change{Topic: name, ConfigSync: configSync, State: Resolved, Text: "spec.alerting does not name this topic any more", Since: &reported.since,
				ended: reported.open(), recordIfUncertain: reported.uncertain()})
		}
	}
	return changes
}

// pausedSince returns when the pause was first seen, and records it. Without a pause, the time is zero.
func (ch *channel) pausedSince(in input) time.Time {
	if !in.Paused() {
		delete(ch.sent, pausedSince)
		return time.Time{}
	}
	since, err := time.Parse(time.RFC3339, ch.sent[pausedSince])
	if err != nil {
		since = in.now.UTC().Truncate(time.Second)
		ch.sent[pausedSince] = since.Format(time.RFC3339)
	}
	return since
}

// dueState returns the change of a state if it has differed from the record for settle.
func (ch *channel) dueState(t topic, in input, settle time.Duration) []change {
	changedAt, differed := ch.changedAt[t.name]
	if !differed {
		changedAt = in.now
	}
	c := ch.stateChange(t, in, changedAt)
	if c == nil {
		delete(ch.changedAt, t.name)
		return nil
	}
	ch.changedAt[t.name] = changedAt
	if in.now.Sub(changedAt) < settle {
		return nil
	}
	return []change{*c}
}

// noEvent is the record of a topic whose event had not happened yet when the channel saw the fleet first.
const noEvent = "-"

// unsentEvents returns the events of a topic that were not sent yet, each as it was when it was seen. An event that the channel sees when it
// first knows the fleet is not sent: it may have happened before alerting began. The fleet is not known while no agent confirms the status, or
// while the status is of an older spec or request, as after a change of spec.alerting.
func (ch *channel) unsentEvents(t topic, in input) []change {
	list := ch.pending[t.name]
	last, known := ch.sent[t.name]
	if n := len(list); n > 0 {
		last = list[n-1].recordIfAccepted
	}
	knowsFleet := in.verdict.Reason != v1alpha1.ReasonAgentsAway && (in.Status.Outcome == nil || desiredref.Current(in.GatewaySync))
	if e := t.event(in); e.id == "" && !e.unknown && !known && knowsFleet {
		ch.sent[t.name] = noEvent
	} else if e.id != "" {
		sum := sha256.Sum256([]byte(e.id))
		digest := hex.EncodeToString(sum[:4])
		c := change{Topic: t.name, State: News, Ref: e.ref, Commit: e.commit, Text: failure.Cut(e.text, maxText), recordIfAccepted: digest}
		switch {
		case !known:
			ch.sent[t.name] = digest
		case digest != last:
			list = append(slices.DeleteFunc(list, func(p pendingEvent) bool { // equal events are sent once
				return p.Ref == c.Ref && p.Commit == c.Commit && p.Text == c.Text
			}), pendingEvent{c, in.now})
		}
	}
	list = list[max(len(list)-maxPending, 0):]
	for len(list) > 0 && in.now.Sub(list[0].at) > eventLifetime { // too old to send
		ch.sent[t.name] = list[0].recordIfAccepted
		list = list[1:]
	}
	ch.pending[t.name] = list
	var changes []change
	for _, p := range list {
		changes = append(changes, p.change)
	}
	return changes
}

// stateChange returns what is to be sent about a state: that it began, that it became worse, or that it ended. It returns nil if the
// receiver knows that already. changedAt is when the state began to differ from what was sent.
func (ch *channel) stateChange(t topic, in input, changedAt time.Time) *change {
	s := t.state(in)
	text, firing := ch.sent[t.name]
	reported := decodeReport(text)
	if s.text == "" {
		ch.absentAt[t.name] = in.now
		if !firing {
			return nil
		}
		return ch.end(t, in, reported, changedAt)
	}
	c := &change{Topic: t.name, State: Firing, Severity: s.severity, Ref: in.verdict.Ref, Commit: in.verdict.Commit, Text: failure.Cut(s.text, maxText)}
	switch {
	case !firing:
		reported.since = ch.began(t.name, s, changedAt)
	case !reported.worse(s):
		return nil
	default:
		c.ended = reported.open()
	}
	reported = reported.with(s)
	c.reason, c.incident, c.recordIfAccepted, c.recordIfUncertain = s.key(), reported.incident(), reported.encode(), reported.uncertain()
	c.ended = slices.DeleteFunc(c.ended, func(one string) bool { return one == c.incident })
	if !reported.since.IsZero() {
		c.Since = &reported.since
	}
	return c
}

// end returns the end of a state that was sent as firing.
func (ch *channel) end(t topic, in input, reported report, endedAt time.Time) *change {
	c := &change{Topic: t.name, State: Resolved, Ref: in.verdict.Ref, Commit: in.verdict.Commit, Text: "it has ended", ended: reported.open(), recordIfUncertain: reported.uncertain()}
	if since := reported.since; !since.IsZero() {
		c.Since, c.Text = &since, "it has ended after "+endedAt.Sub(since).Round(time.Second).String()
	}
	if text := in.verdict.Message; text != "" && (topicOfKey(t.name) == configSyncNotReady || len(ch.gs.Status.Conditions) > 0) {
		c.Text = failure.Cut(c.Text+": "+text, maxText)
	}
	return c
}

// began returns when a state began. The status says it, unless the state was seen not to hold since then.
func (ch *channel) began(name v1alpha1.AlertTopic, s situation, seen time.Time) time.Time {
	since := s.since
	if since.IsZero() || since.After(seen) || since.Before(ch.absentAt[name]) {
		since = seen
	}
	return since.UTC().Truncate(time.Second)
}

// record records the changes that the receiver accepted, and those that it may have, and sets the time of the next message.
func (ch *channel) record(accepted, uncertain []change, err error, now time.Time) {
	for _, c := range uncertain {
		ch.sent[c.key()] = c.recordIfUncertain
	}
	for _, c := range accepted {
		key := c.key()
		delete(ch.changedAt, key)
		switch c.State {
		case Resolved:
			delete(ch.sent, key)
		case News:
			ch.sent[c.Topic] = c.recordIfAccepted
			ch.pending[c.Topic] = slices.DeleteFunc(ch.pending[c.Topic], func(p pendingEvent) bool { return p.recordIfAccepted == c.recordIfAccepted })
		default:
			ch.sent[key] = c.recordIfAccepted
		}
	}
	if err == nil {
		ch.failures, ch.nextSend = 0, now.Add(minSendInterval)
		return
	}
	pause := backoff.Retry(ch.failures, maxRetryPause)
	if rejected, ok := errors.AsType[*statusError](err); ok {
		pause = max(pause, rejected.retryAfter)
	}
	ch.failures, ch.nextSend = ch.failures+1, now.Add(max(pause, minRetryPause))
}

// report is what was sent about a state that fires: when it began, its last severity, its greatest number of gateways, and its incidents.
type report struct {
	since    time.Time
	severity Severity
	count    int
	// incidents are what worse distinguishes: reason/severity/number of gateways. The one that was sent last is the last one.
	incidents []string
}

// incident returns the incident that was sent last.
func (r report) incident() string {
	if len(r.incidents) == 0 {
		return ""
	}
	return r.incidents[len(r.incidents)-1]
}

// unsure is the severity in the record of a state of which the receiver may have the beginning, the end, or neither.
const unsure Severity = "unsure"

// uncertain returns the record of a state after a message whose answer is lost. Every state counts as worse than this record, so that it is
// sent again.
func (r report) uncertain() string {
	r.severity = unsure
	return r.encode()
}

// open returns the incidents that PagerDuty has, or may have.
func (r report) open() []string {
	if r.severity == unsure {
		return slices.Clone(r.incidents)
	}
	return []string{r.incident()}
}

// worse reports whether s is worse than what was sent: it is more severe or, if it is as severe, has a reason that was not sent, or at least
// twice as many gateways.
func (r report) worse(s situation) bool {
	if s.severity != r.severity {
		return rank(s.severity) > rank(r.severity)
	}
	return !slices.ContainsFunc(r.incidents, func(one string) bool { return strings.HasPrefix(one, s.key()+"/") }) || s.count >= 2*max(r.count, 1)
}

// with returns the report after s was sent.
func (r report) with(s situation) report {
	count := max(r.count, s.count)
	incident := fmt.Sprintf("%s/%s/%d", s.key(), s.severity, count)
	incidents := append(slices.DeleteFunc(slices.Clone(r.incidents), func(one string) bool { return one == incident }), incident)
	return report{since: r.since, severity: s.severity, count: count, incidents: incidents[max(len(incidents)-maxIncidents, 0):]}
}

func (r report) encode() string {
	return fmt.Sprintf("%s %s %d %s", r.since.UTC().Format(time.RFC3339), r.severity, r.count, strings.Join(r.incidents, ","))
}

// decodeReport returns the report in a text. What is not valid is left out.
func decodeReport(text string) report {
	var r report
	parts := append(strings.Fields(text), "", "", "", "")
	r.since, _ = time.Parse(time.RFC3339, parts[0])
	r.severity = Severity(parts[1])
	r.count, _ = strconv.Atoi(parts[2])
	if parts[3] != "" {
		r.incidents = strings.Split(parts[3], ",")
	}
	return r
}
