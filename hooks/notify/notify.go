// Package notify sends notifications about GatewaySyncs to Slack, PagerDuty and other receivers (spec.alerting).
//
// It is level-triggered: it compares each status with a record of what it has sent, and sends the difference. So it needs no queue. A state
// that ends before its receiver can be reached is never sent. Each notification is sent once, even if the notifier restarts; only a crash
// between a message and its record repeats that message. The record is an annotation of the Lease that elects one replica.
//
// The notifier is part of the command line and not of the receiver or the agents. The receiver accepts untrusted callers and connects only
// to the API server, and gateway pods need no access to the Internet. The notifier runs from the image of the hook Jobs.
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
	"stoker.io/stoker/internal/outbound"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/internal/status"
)

const (
	// atMost is the least time between two messages to a receiver about a GatewaySync. Changes in between are sent
	// together.
	atMost = time.Minute
	// maxRetry is the longest pause after a failure, and newsFor is how long the notifier tries to send news. It tries to send a state for
	// as long as the state lasts.
	maxRetry, newsFor = 10 * time.Minute, time.Hour
	// every is how often all GatewaySyncs are compared, because a status may lapse without a change, and least the time between two
	// comparisons.
	every, least = 30 * time.Second, time.Second
	// atOnce bounds parallel messages.
	atOnce = 8
	// readWithin bounds the read of a Secret, and saveWithin the write of the record.
	readWithin, saveWithin = 10 * time.Second, 5 * time.Second
)

// Config configures a Notifier.
type Config struct {
	Core kubernetes.Interface
	// List returns the GatewaySyncs, or false while they are not known.
	List func() ([]*v1alpha1.GatewaySync, bool)
	// Changed receives when they may have changed.
	Changed <-chan struct{}
	Client  outbound.Client
	// Settle is how long a state must last before it is sent as firing, and be over before it is sent as resolved.
	Settle time.Duration
	// Load and Save read and write the record of what was sent.
	Load func(context.Context) (string, error)
	Save func(context.Context, string) error
	// Sent is called with the result of each message: sent or failed.
	Sent func(kind v1alpha1.AlertType, result string)
	Log  *slog.Logger
}

// Notifier sends notifications about GatewaySyncs.
type Notifier struct {
	Config
	channels map[string]*channel // by key
}

// channel is one receiver of one GatewaySync's notifications.
type channel struct {
	gs   *v1alpha1.GatewaySync
	hook *v1alpha1.AlertWebhook
	// sent is the record: the time at which a state that was sent as firing began, or a digest of the last news.
	sent map[v1alpha1.AlertTopic]string
	// since is the time at which a topic began to differ from sent.
	since    map[v1alpha1.AlertTopic]time.Time
	next     time.Time // no message before
	failures int
}

// New returns a Notifier.
func New(c Config) *Notifier { return &Notifier{Config: c, channels: map[string]*channel{}} }

// Run sends notifications until ctx is done. It returns an error if the record cannot be read or written.
func (n *Notifier) Run(ctx context.Context) error {
	text, err := n.Load(ctx)
	if err != nil {
		return fmt.Errorf("read the record of notifications: %w", err)
	}
	last := n.parse(text)
	for {
		if list, known := n.List(); known {
			if err := n.round(ctx, list, last, time.Now()); err != nil {
				return err
			}
			last = nil
		}
		if !backoff.Wait(ctx, least) {
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

// pause returns the time until a comparison without a change.
func (n *Notifier) pause(now time.Time) time.Duration {
	d := every
	for _, ch := range n.channels {
		for _, at := range ch.since {
			d = min(d, max(at.Add(n.Settle).Sub(now), ch.next.Sub(now)))
		}
	}
	return max(d, least)
}

// round compares all GatewaySyncs with the record and sends what is due. last is the record of the previous replica in the first round, and
// nil later.
func (n *Notifier) round(ctx context.Context, list []*v1alpha1.GatewaySync, last record, now time.Time) error {
	before := n.text()
	n.configure(list, last)
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, ch := range n.channels {
		changes := ch.compare(now, n.Settle)
		if len(changes) == 0 || now.Before(ch.next) {
			continue
		}
		group.Go(func() error { // no other goroutine has this channel
			accepted, err := n.deliver(ctx, ch, changes, now)
			ch.record(accepted, err, now)
			return nil
		})
	}
	_ = group.Wait() // never fails
	after := n.text()
	if after == before && last == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveWithin) // what was sent must not be sent again
	defer cancel()
	if err := n.Save(ctx, after); err != nil {
		return fmt.Errorf("write the record of notifications: %w", err)
	}
	return nil
}

// configure sets the channels to those of the specs. It drops the records of GatewaySyncs that are deleted or have no alerting.
func (n *Notifier) configure(list []*v1alpha1.GatewaySync, last record) {
	channels := map[string]*channel{}
	for _, gs := range list {
		a := gs.Spec.Alerting
		if a == nil || !a.Enabled {
			continue
		}
		for i := range a.Webhooks {
			key := keyOf(gs, &a.Webhooks[i])
			ch := n.channels[key]
			if ch == nil {
				ch = &channel{sent: map[v1alpha1.AlertTopic]string{}, since: map[v1alpha1.AlertTopic]time.Time{}}
				maps.Copy(ch.sent, last[key])
			}
			ch.gs, ch.hook = gs, &a.Webhooks[i]
			channels[key] = ch
		}
	}
	n.channels = channels
}

// keyOf identifies a receiver of a GatewaySync regardless of its position in the list.
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

// compare returns the changes since the record that are due: news, and states that have lasted for settle.
func (ch *channel) compare(now time.Time, settle time.Duration) []change {
	s := look(ch.gs, now)
	var out []change
	wanted := map[v1alpha1.AlertTopic]bool{}
	for _, name := range on(ch.hook) {
		w, ok := topicOf(name)
		if !ok || wanted[w.name] {
			continue
		}
		wanted[w.name] = true
		if c := ch.changed(w, w.is(s), s, now); c != nil {
			if _, ok := ch.since[w.name]; !ok {
				ch.since[w.name] = now
			}
			age := now.Sub(ch.since[w.name])
			switch {
			case c.State == News && age > newsFor:
				ch.sent[w.name] = c.sent // not news any more
			case c.State == News || age >= settle:
				out = append(out, *c)
				continue
			default:
				continue
			}
		}
		delete(ch.since, w.name)
	}
	maps.DeleteFunc(ch.sent, func(name v1alpha1.AlertTopic, _ string) bool { return !wanted[name] })
	maps.DeleteFunc(ch.since, func(name v1alpha1.AlertTopic, _ time.Time) bool { return !wanted[name] })
	return out
}

func on(w *v1alpha1.AlertWebhook) []v1alpha1.AlertTopic {
	if len(w.On) == 0 {
		return []v1alpha1.AlertTopic{"NotReady"}
	}
	return w.On
}

// changed returns the change of a topic whose value is is, or nil if it has not changed.
func (ch *channel) changed(w topic, is string, s seen, now time.Time) *change {
	was, sent := ch.sent[w.name]
	at, ok := ch.since[w.name] // when it began to differ
	if !ok {
		at = now
	}
	switch {
	case w.news && is == "":
		return nil
	case w.news:
		digest := sha256.Sum256([]byte(is))
		value := hex.EncodeToString(digest[:4])
		if !sent { // what happened before alerting began is not news
			ch.sent[w.name] = value
			return nil
		}
		if value == was {
			return nil
		}
		return &change{Topic: w.name, State: News, Text: status.Cut(w.text(s), maxText), sent: value}
	case is != "" && !sent:
		since := at
		return &change{Topic: w.name, State: Firing, Text: status.Cut(is, maxText), Since: &since, sent: since.UTC().Format(time.RFC3339)}
	case is == "" && sent:
		c := &change{Topic: w.name, State: Resolved, Text: "it has ended"}
		if since, err := time.Parse(time.RFC3339, was); err == nil {
			c.Since, c.Text = &since, "it has ended after "+at.Sub(since).Round(time.Second).String()
		}
		if text := s.verdict.Message; text != "" && len(ch.gs.Status.Conditions) > 0 {
			c.Text = status.Cut(c.Text+": "+text, maxText)
		}
		return c
	}
	return nil
}

// record records the changes that the receiver accepted, and sets the time of the next message.
func (ch *channel) record(changes []change, err error, now time.Time) {
	for _, c := range changes {
		delete(ch.since, c.Topic)
		if ch.sent[c.Topic] = c.sent; c.State == Resolved {
			delete(ch.sent, c.Topic)
		}
	}
	if err == nil {
		ch.failures, ch.next = 0, now.Add(atMost)
		return
	}
	pause := backoff.Retry(ch.failures, maxRetry)
	if busy, ok := errors.AsType[*busyError](err); ok {
		pause = max(pause, busy.after)
	}
	ch.failures, ch.next = ch.failures+1, now.Add(max(pause, 5*time.Second))
}

// deliver sends changes to the receiver of a channel. It returns those that the receiver accepted.
func (n *Notifier) deliver(ctx context.Context, ch *channel, changes []change, now time.Time) ([]change, error) {
	s := ch.gs
	ctx = context.WithoutCancel(ctx) // an interrupted message may have arrived: it would be sent again. The client bounds its time
	c, err := n.credentials(ctx, ch)
	var accepted []change
	if err == nil {
		v := look(s, now).verdict
		accepted, err = send(ctx, n.Client, ch.hook.Type, c, notice{Namespace: s.Namespace, GatewaySync: s.Name, Ref: v.Ref, Commit: v.Commit, Changes: changes, uid: string(s.UID)}, now)
	}
	log := n.Log.With("namespace", s.Namespace, "gatewaysync", s.Name, "type", string(ch.hook.Type))
	for _, c := range accepted {
		n.Sent(ch.hook.Type, "sent")
		log.Info("notification sent", "on", string(c.Topic), "state", string(c.State))
	}
	if err != nil {
		n.Sent(ch.hook.Type, "failed")
		log.Warn("notification failed; trying again", "error", err)
	}
	return accepted, err
}

// credentials reads the Secrets of a receiver. They are read for each message, so that a new value counts at once.
func (n *Notifier) credentials(ctx context.Context, ch *channel) (c credentials, err error) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	for _, one := range []struct {
		ref  *v1alpha1.SecretKeyRef
		into *secret.String
	}{{ch.hook.URLSecretRef, &c.url}, {ch.hook.IntegrationKeySecretRef, &c.integrationKey}, {ch.hook.SigningSecretRef, &c.signingKey}} {
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
		if *one.into, err = valueOf(s, one.ref.Key); err != nil {
			return c, err
		}
	}
	return c, nil
}

// maxValue bounds a value of a Secret in bytes.
const maxValue = 4096

func valueOf(s *corev1.Secret, key string) (secret.String, error) {
	value := strings.TrimRight(string(s.Data[key]), " \r\n")
	if value == "" || len(value) > maxValue {
		return secret.String{}, fmt.Errorf("the key %s of the Secret %s must have 1 to %d bytes", key, s.Name, maxValue)
	}
	return secret.New(value), nil
}

// record is what was sent, by channel and topic.
type record map[string]map[v1alpha1.AlertTopic]string

// maxRecord bounds the record, so that the annotation does not exceed the limit of an object.
const maxRecord = 200 << 10

// text encodes the record. If it would be too large, it omits the channels with the greatest keys, whose states are then sent again after a
// restart.
func (n *Notifier) text() string {
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
		return "" // strings always encode
	}
	return string(text)
}

func (n *Notifier) parse(text string) record {
	r := record{}
	if err := json.Unmarshal([]byte(cmp.Or(text, "{}")), &r); err != nil {
		n.Log.Error("dropping an invalid record of notifications", "error", err)
		return record{}
	}
	return r
}
