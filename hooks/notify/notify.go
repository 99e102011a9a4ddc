// Package notify sends notifications about GatewaySyncs to Slack, PagerDuty and other receivers (spec.alerting).
//
// It is level-triggered: it compares each status with a record of what it has sent, and sends the difference. So it needs no
// queue. If a state ends before the notifier reaches the receiver, it sends nothing about the state. The record is an annotation
// of the Lease that elects one replica, so a restart repeats no notification. Only a crash between a message and its record
// repeats that message.
//
// The notifier is part of the command line, and not of the receiver or the agents. The receiver accepts untrusted callers and
// connects only to the API server, and gateway pods need no access to the Internet. The notifier runs from the image of the hook
// Jobs.
package notify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/outbound"
	"stoker.io/stoker/internal/secret"
)

const (
	// minSendInterval is the least time between two messages to a receiver about a GatewaySync. Changes in between are sent
	// together.
	minSendInterval = time.Minute
	// minRetryPause and maxRetryPause bound the pause after a failure.
	minRetryPause, maxRetryPause = 5 * time.Second, 10 * time.Minute
	// newsLifetime is how long the notifier tries to send an event. It tries to send a state for as long as the state lasts.
	newsLifetime = time.Hour
	// compareInterval is the longest time between two comparisons, because a status may lapse without a change, and
	// minCompareInterval the shortest.
	compareInterval, minCompareInterval = 30 * time.Second, time.Second
	// maxParallel bounds parallel messages.
	maxParallel = 8
	// readTimeout bounds the read of a Secret, and saveTimeout the write of the record.
	readTimeout, saveTimeout = 10 * time.Second, 5 * time.Second
)

// Config configures a Notifier.
type Config struct {
	Core kubernetes.Interface
	// List returns the GatewaySyncs, or false while they are unknown.
	List func() ([]*v1alpha1.GatewaySync, bool)
	// Changed receives a value when they may have changed.
	Changed <-chan struct{}
	Client  outbound.Client
	// Settle is how long a state must last before it is sent as firing, and be over before it is sent as resolved.
	Settle time.Duration
	// Load and Save read and write the record of what was sent.
	Load func(context.Context) (string, error)
	Save func(context.Context, string) error
	// Sent is called with the result of each message, sent or failed. It must be safe for concurrent use.
	Sent func(kind v1alpha1.AlertType, result string)
	Log  *slog.Logger
}

// Notifier sends notifications about GatewaySyncs.
type Notifier struct {
	Config
	channels map[string]*channel // by key
}

// channel is one receiver of the notifications about one GatewaySync.
type channel struct {
	gs      *v1alpha1.GatewaySync
	webhook *v1alpha1.AlertWebhook
	// sent is the record: the time at which a state that was sent as firing began, or a digest of the last event.
	sent map[v1alpha1.AlertTopic]string
	// changedAt is the time at which a topic began to differ from sent.
	changedAt map[v1alpha1.AlertTopic]time.Time
	nextSend  time.Time // no message before
	failures  int       // since the last message that was accepted
}

// New returns a Notifier.
func New(c Config) *Notifier { return &Notifier{Config: c, channels: map[string]*channel{}} }

// Run sends notifications until ctx is done. It returns an error if the record cannot be read or written.
func (n *Notifier) Run(ctx context.Context) error {
	text, err := n.Load(ctx)
	if err != nil {
		return fmt.Errorf("read the record of notifications: %w", err)
	}
	previous := n.decodeRecord(text)
	for {
		if list, known := n.List(); known {
			if err := n.sendDue(ctx, list, previous, time.Now()); err != nil {
				return err
			}
			previous = nil
		}
		if !backoff.Wait(ctx, minCompareInterval) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.Changed:
		case <-time.After(n.pause(time.Now())):
		}
	}
}

// pause returns the time until the next comparison if no GatewaySync changes.
func (n *Notifier) pause(now time.Time) time.Duration {
	d := compareInterval
	for _, ch := range n.channels {
		for _, t := range ch.changedAt {
			d = min(d, max(t.Add(n.Settle).Sub(now), ch.nextSend.Sub(now)))
		}
	}
	return max(d, minCompareInterval)
}

// sendDue compares all GatewaySyncs with the record and sends what is due. previous is the record of the previous replica in the
// first call, and nil later.
func (n *Notifier) sendDue(ctx context.Context, list []*v1alpha1.GatewaySync, previous record, now time.Time) error {
	before := n.encodeRecord()
	n.configure(list, previous)
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for _, ch := range n.channels {
		changes := ch.due(now, n.Settle)
		if len(changes) == 0 || now.Before(ch.nextSend) {
			continue
		}
		group.Go(func() error { // no other goroutine has this channel
			accepted, err := n.deliver(ctx, ch, changes, now)
			ch.record(accepted, err, now)
			return nil
		})
	}
	_ = group.Wait() // never fails
	after := n.encodeRecord()
	if after == before && previous == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout) // what was sent must not be sent again
	defer cancel()
	if err := n.Save(ctx, after); err != nil {
		return fmt.Errorf("write the record of notifications: %w", err)
	}
	return nil
}

// configure sets the channels to those of the specs, and drops the others with their records.
func (n *Notifier) configure(list []*v1alpha1.GatewaySync, previous record) {
	channels := map[string]*channel{}
	for _, gs := range list {
		a := gs.Spec.Alerting
		if a == nil || !a.Enabled {
			continue
		}
		for i := range a.Webhooks {
			key := keyOf(gs, &a.Webhooks[i])
			ch := cmp.Or(channels[key], n.channels[key])
			if ch == nil {
				ch = &channel{sent: map[v1alpha1.AlertTopic]string{}, changedAt: map[v1alpha1.AlertTopic]time.Time{}}
				maps.Copy(ch.sent, previous[key])
			}
			webhook := &a.Webhooks[i]
			if channels[key] != nil { // an earlier entry of the list has the same receiver: it gets the topics of both
				webhook = ch.webhook.DeepCopy()
				webhook.On = slices.Concat(topicsOf(webhook), topicsOf(&a.Webhooks[i]))
				webhook.SigningSecretRef = cmp.Or(webhook.SigningSecretRef, a.Webhooks[i].SigningSecretRef)
			}
			ch.gs, ch.webhook = gs, webhook
			channels[key] = ch
		}
	}
	n.channels = channels
}

// keyOf returns the key of the channel for w. It does not depend on the position of w in the list.
func keyOf(gs *v1alpha1.GatewaySync, w *v1alpha1.AlertWebhook) string {
	h := sha256.New()
	fmt.Fprintln(h, gs.UID, w.Type)
	for _, ref := range []*v1alpha1.SecretKeyRef{w.URLSecretRef, w.IntegrationKeySecretRef} {
		if ref != nil {
			fmt.Fprintln(h, ref.Name, ref.Key)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// due returns the changes since the record that are due: events, and states that have lasted for settle.
func (ch *channel) due(now time.Time, settle time.Duration) []change {
	in := newInput(ch.gs, now)
	var changes []change
	wanted := map[v1alpha1.AlertTopic]bool{}
	for _, name := range topicsOf(ch.webhook) {
		t, ok := topicOf(name)
		if !ok || wanted[t.name] {
			continue
		}
		wanted[t.name] = true
		changedAt, differed := ch.changedAt[t.name]
		if !differed {
			changedAt = now
		}
		var c *change
		if t.event != nil {
			c = ch.news(t, in)
		} else {
			c = ch.stateChange(t, in, changedAt)
		}
		age := now.Sub(changedAt)
		switch {
		case c == nil:
			delete(ch.changedAt, t.name)
		case c.State == News && age > newsLifetime: // not news any more
			ch.sent[t.name] = c.sent
			delete(ch.changedAt, t.name)
		default:
			ch.changedAt[t.name] = changedAt
			if c.State == News || age >= settle {
				changes = append(changes, *c)
			}
		}
	}
	maps.DeleteFunc(ch.sent, func(name v1alpha1.AlertTopic, _ string) bool { return !wanted[name] })
	maps.DeleteFunc(ch.changedAt, func(name v1alpha1.AlertTopic, _ time.Time) bool { return !wanted[name] })
	return changes
}

func topicsOf(w *v1alpha1.AlertWebhook) []v1alpha1.AlertTopic {
	if len(w.On) == 0 {
		return []v1alpha1.AlertTopic{"NotReady"}
	}
	return w.On
}

// news returns the event of a topic that was not sent yet, or nil if there is none. The first event that it sees is not news: it
// may have happened before alerting began.
func (ch *channel) news(t topic, in input) *change {
	event := t.event(in)
	if event == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(event))
	digest := hex.EncodeToString(sum[:4])
	last, ok := ch.sent[t.name]
	if !ok {
		ch.sent[t.name] = digest
	}
	if !ok || digest == last {
		return nil
	}
	return &change{Topic: t.name, State: News, Text: failure.Cut(t.text(in), maxText), sent: digest}
}

// stateChange returns the beginning or the end of a state that was not sent yet, or nil. changedAt is when the state began or
// ended.
func (ch *channel) stateChange(t topic, in input, changedAt time.Time) *change {
	cause := t.state(in)
	began, firing := ch.sent[t.name]
	switch {
	case cause != "" && !firing:
		return &change{Topic: t.name, State: Firing, Text: failure.Cut(cause, maxText), Since: &changedAt, sent: changedAt.UTC().Format(time.RFC3339)}
	case cause == "" && firing:
		c := &change{Topic: t.name, State: Resolved, Text: "it has ended"}
		if since, err := time.Parse(time.RFC3339, began); err == nil {
			c.Since, c.Text = &since, "it has ended after "+changedAt.Sub(since).Round(time.Second).String()
		}
		if text := in.verdict.Message; text != "" && len(ch.gs.Status.Conditions) > 0 {
			c.Text = failure.Cut(c.Text+": "+text, maxText)
		}
		return c
	}
	return nil
}

// record records the changes that the receiver accepted, and sets the time of the next message.
func (ch *channel) record(changes []change, err error, now time.Time) {
	for _, c := range changes {
		delete(ch.changedAt, c.Topic)
		if ch.sent[c.Topic] = c.sent; c.State == Resolved {
			delete(ch.sent, c.Topic)
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

// deliver sends changes to the receiver of a channel. It returns those that the receiver accepted.
func (n *Notifier) deliver(ctx context.Context, ch *channel, changes []change, now time.Time) ([]change, error) {
	gs := ch.gs
	ctx = context.WithoutCancel(ctx) // an interrupted message may have arrived, and would be sent again; the client bounds the time
	c, err := n.credentials(ctx, ch)
	var accepted []change
	if err == nil {
		v := newInput(gs, now).verdict
		accepted, err = send(ctx, n.Client, ch.webhook.Type, c, notice{Namespace: gs.Namespace, GatewaySync: gs.Name, Ref: v.Ref, Commit: v.Commit,
			Changes: changes, uid: string(gs.UID)}, now)
	}
	log := n.Log.With("namespace", gs.Namespace, "gatewaysync", gs.Name, "type", string(ch.webhook.Type))
	for _, c := range accepted {
		n.Sent(ch.webhook.Type, "sent")
		log.Info("notification sent", "on", string(c.Topic), "state", string(c.State))
	}
	if err != nil {
		n.Sent(ch.webhook.Type, "failed")
		log.Warn("notification failed; trying again", "error", err)
	}
	return accepted, err
}

// credentials reads the Secrets of a receiver. It is called for each message, so that a new value takes effect at once.
func (n *Notifier) credentials(ctx context.Context, ch *channel) (c credentials, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, one := range []struct {
		ref  *v1alpha1.SecretKeyRef
		into *secret.String
	}{{ch.webhook.URLSecretRef, &c.url}, {ch.webhook.IntegrationKeySecretRef, &c.integrationKey}, {ch.webhook.SigningSecretRef, &c.signingKey}} {
		if one.ref == nil {
			continue
		}
		s, err := n.Core.CoreV1().Secrets(ch.gs.Namespace).Get(ctx, one.ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err):
			return c, fmt.Errorf("the Secret %s cannot be read: add it to notifier.secrets of the chart, or bind a Role that allows to get it: %w", one.ref.Name, err)
		case err != nil:
			return c, fmt.Errorf("read the Secret %s: %w", one.ref.Name, err)
		}
		if *one.into, err = secretValue(s, one.ref.Key); err != nil {
			return c, err
		}
	}
	return c, nil
}

// maxSecretSize bounds a value of a Secret, in bytes.
const maxSecretSize = 4096

func secretValue(s *corev1.Secret, key string) (secret.String, error) {
	value := strings.TrimRight(string(s.Data[key]), " \r\n")
	if value == "" || len(value) > maxSecretSize {
		return secret.String{}, fmt.Errorf("the key %s of the Secret %s must have 1 to %d bytes", key, s.Name, maxSecretSize)
	}
	return secret.New(value), nil
}

// record is what was sent, by the key of the channel and the topic.
type record map[string]map[v1alpha1.AlertTopic]string

// maxRecord bounds the record in bytes, so that the annotation does not exceed the limit of Kubernetes.
const maxRecord = 200 << 10

// encodeRecord encodes the record. If it would be too large, it omits the channels with the greatest keys, whose states are then
// sent again after a restart.
func (n *Notifier) encodeRecord() string {
	r := record{}
	size := 2
	for _, key := range slices.Sorted(maps.Keys(n.channels)) {
		sent := n.channels[key].sent
		for topic, value := range sent {
			size += len(topic) + len(value) + 6
		}
		if size += len(key) + 6; len(sent) > 0 && size <= maxRecord {
			r[key] = sent
		}
	}
	if len(r) == 0 {
		return ""
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "" // it never fails: strings always encode
	}
	return string(text)
}

// decodeRecord returns the record in a text, or an empty one if the text is empty or invalid.
func (n *Notifier) decodeRecord(text string) record {
	r := record{}
	if err := json.Unmarshal([]byte(cmp.Or(text, "{}")), &r); err != nil {
		n.Log.Error("dropping an invalid record of notifications", "error", err)
		return record{}
	}
	return r
}
