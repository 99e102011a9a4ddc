// Package notify tells Slack, PagerDuty and other receivers what becomes of GatewaySyncs (spec.alerting).
//
// It compares what a status says with what was told last, and tells the difference. So it needs no queue: what ends before a receiver
// could be reached is not told, and what is told is told once, also after a restart. Only a crash between a message and its record repeats
// that message. The record is in the Lease by which one replica is elected.
//
// It is a part of the command line, and neither of the receiver nor of the agents: the receiver talks to strangers and calls only the API
// server, and gateway pods need no access to the Internet. Its image is the one of the hook Jobs.
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
	// atMost is the least time between two messages to a receiver about a GatewaySync. What changes in between is told together.
	atMost = time.Minute
	// maxRetry is the longest pause after a failure, and newsFor how long news are worth telling. A state is told for as long as it lasts.
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
	// Settle is how long a state must last before it is told, and how long it must be over before its end is told.
	Settle time.Duration
	// Load and Save keep what was told.
	Load func(context.Context) (string, error)
	Save func(context.Context, string) error
	// Sent is called with the result of each message: sent or failed.
	Sent func(kind v1alpha1.AlertType, result string)
	Log  *slog.Logger
}

// Notifier tells what becomes of GatewaySyncs.
type Notifier struct {
	Config
	lines map[string]*line // by key
}

// line is what one receiver is told about one GatewaySync.
type line struct {
	gs   *v1alpha1.GatewaySync
	hook *v1alpha1.AlertWebhook
	// said is what was told, by word: since when a state is true, or which news.
	said map[v1alpha1.AlertWord]string
	// first is since when a word differs from said.
	first    map[v1alpha1.AlertWord]time.Time
	next     time.Time // no message before
	failures int
}

// New returns a Notifier.
func New(c Config) *Notifier { return &Notifier{Config: c, lines: map[string]*line{}} }

// Run tells until ctx is done.
func (n *Notifier) Run(ctx context.Context) error {
	text, err := n.Load(ctx)
	if err != nil {
		return fmt.Errorf("read what was told: %w", err)
	}
	told := n.parse(text)
	for {
		if list, known := n.List(); known {
			if err := n.round(ctx, list, told, time.Now()); err != nil {
				return err
			}
			told = nil
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
	for _, l := range n.lines {
		for _, at := range l.first {
			d = min(d, max(at.Add(n.Settle).Sub(now), l.next.Sub(now)))
		}
	}
	return max(d, least)
}

// round compares all GatewaySyncs and sends what is due. told is the record of the last replica, in the first round.
func (n *Notifier) round(ctx context.Context, list []*v1alpha1.GatewaySync, told record, now time.Time) error {
	before := n.text()
	n.look(list, told)
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, l := range n.lines {
		changes := l.compare(now, n.Settle)
		if len(changes) == 0 || now.Before(l.next) {
			continue
		}
		group.Go(func() error { // no other goroutine has this line
			took, err := n.tell(ctx, l, changes, now)
			l.took(took, err, now)
			return nil
		})
	}
	_ = group.Wait() // never fails
	after := n.text()
	if after == before && told == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveWithin) // what was told must not be told again
	defer cancel()
	if err := n.Save(ctx, after); err != nil {
		return fmt.Errorf("record what was told: %w", err)
	}
	return nil
}

// look brings the lines in accord with the specs. A GatewaySync that is gone, or has no alerting, is forgotten.
func (n *Notifier) look(list []*v1alpha1.GatewaySync, told record) {
	lines := map[string]*line{}
	for _, gs := range list {
		a := gs.Spec.Alerting
		if a == nil || !a.Enabled {
			continue
		}
		for i := range a.Webhooks {
			key := keyOf(gs, &a.Webhooks[i])
			l := n.lines[key]
			if l == nil {
				l = &line{said: map[v1alpha1.AlertWord]string{}, first: map[v1alpha1.AlertWord]time.Time{}}
				maps.Copy(l.said, told[key])
			}
			l.gs, l.hook = gs, &a.Webhooks[i]
			lines[key] = l
		}
	}
	n.lines = lines
}

// keyOf identifies a receiver of a GatewaySync, whatever its place in the list.
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

// compare returns what differs from what was told, and has for long enough.
func (l *line) compare(now time.Time, settle time.Duration) []change {
	s := look(l.gs, now)
	var out []change
	wanted := map[v1alpha1.AlertWord]bool{}
	for _, name := range on(l.hook) {
		w, ok := named(name)
		if !ok || wanted[w.name] {
			continue
		}
		wanted[w.name] = true
		if c := l.differs(w, w.is(s), s, now); c != nil {
			if _, ok := l.first[w.name]; !ok {
				l.first[w.name] = now
			}
			age := now.Sub(l.first[w.name])
			switch {
			case c.State == News && age > newsFor:
				l.said[w.name] = c.said // not news any more
			case c.State == News || age >= settle:
				out = append(out, *c)
				continue
			default:
				continue
			}
		}
		delete(l.first, w.name)
	}
	maps.DeleteFunc(l.said, func(name v1alpha1.AlertWord, _ string) bool { return !wanted[name] })
	maps.DeleteFunc(l.first, func(name v1alpha1.AlertWord, _ time.Time) bool { return !wanted[name] })
	return out
}

func on(w *v1alpha1.AlertWebhook) []v1alpha1.AlertWord {
	if len(w.On) == 0 {
		return []v1alpha1.AlertWord{"NotReady"}
	}
	return w.On
}

// differs returns what is to be told of a word whose value is is, or nil.
func (l *line) differs(w word, is string, s seen, now time.Time) *change {
	was, told := l.said[w.name]
	at, ok := l.first[w.name] // when it began to differ
	if !ok {
		at = now
	}
	switch {
	case w.news && is == "":
		return nil
	case w.news:
		digest := sha256.Sum256([]byte(is))
		value := hex.EncodeToString(digest[:4])
		if !told { // what happened before alerting began is not news
			l.said[w.name] = value
			return nil
		}
		if value == was {
			return nil
		}
		return &change{Word: w.name, State: News, Text: status.Cut(w.text(s), maxText), said: value}
	case is != "" && !told:
		since := at
		return &change{Word: w.name, State: Firing, Text: status.Cut(is, maxText), Since: &since, said: since.UTC().Format(time.RFC3339)}
	case is == "" && told:
		c := &change{Word: w.name, State: Resolved, Text: "it has ended"}
		if since, err := time.Parse(time.RFC3339, was); err == nil {
			c.Since, c.Text = &since, "it has ended after "+at.Sub(since).Round(time.Second).String()
		}
		if text := s.verdict.Message; text != "" && len(l.gs.Status.Conditions) > 0 {
			c.Text = status.Cut(c.Text+": "+text, maxText)
		}
		return c
	}
	return nil
}

// took records what the receiver has taken, and when the next message may follow.
func (l *line) took(changes []change, err error, now time.Time) {
	for _, c := range changes {
		delete(l.first, c.Word)
		if l.said[c.Word] = c.said; c.State == Resolved {
			delete(l.said, c.Word)
		}
	}
	if err == nil {
		l.failures, l.next = 0, now.Add(atMost)
		return
	}
	pause := backoff.Retry(l.failures, maxRetry)
	if busy, ok := errors.AsType[*busyError](err); ok {
		pause = max(pause, busy.after)
	}
	l.failures, l.next = l.failures+1, now.Add(max(pause, 5*time.Second))
}

// tell sends changes to the receiver of a line. It returns those that it has taken.
func (n *Notifier) tell(ctx context.Context, l *line, changes []change, now time.Time) ([]change, error) {
	s := l.gs
	ctx = context.WithoutCancel(ctx) // an interrupted message may have arrived: it would be sent again. The client bounds its time
	c, err := n.credentials(ctx, l)
	var took []change
	if err == nil {
		v := look(s, now).verdict
		took, err = send(ctx, n.Client, l.hook.Type, c, notice{Namespace: s.Namespace, GatewaySync: s.Name, Ref: v.Ref, Commit: v.Commit, Changes: changes, uid: string(s.UID)}, now)
	}
	log := n.Log.With("namespace", s.Namespace, "gatewaysync", s.Name, "type", string(l.hook.Type))
	for _, c := range took {
		n.Sent(l.hook.Type, "sent")
		log.Info("notification sent", "on", string(c.Word), "state", string(c.State))
	}
	if err != nil {
		n.Sent(l.hook.Type, "failed")
		log.Warn("notification failed; trying again", "error", err)
	}
	return took, err
}

// credentials reads the Secrets of a receiver. They are read for each message, so that a new value counts at once.
func (n *Notifier) credentials(ctx context.Context, l *line) (c credentials, err error) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	for _, one := range []struct {
		ref  *v1alpha1.SecretKeyRef
		into *secret.String
	}{{l.hook.URLSecretRef, &c.url}, {l.hook.IntegrationKeySecretRef, &c.integrationKey}, {l.hook.SigningSecretRef, &c.signingKey}} {
		if one.ref == nil {
			continue
		}
		s, err := n.Core.CoreV1().Secrets(l.gs.Namespace).Get(ctx, one.ref.Name, metav1.GetOptions{})
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

// record is what was told, by line and word.
type record map[string]map[v1alpha1.AlertWord]string

// maxRecord bounds the record, so that the annotation does not exceed the limit of an object.
const maxRecord = 200 << 10

// text encodes what was told. If there is too much, the lines with the greatest keys are left out: they are told again after a restart.
func (n *Notifier) text() string {
	r := record{}
	size := 2
	for _, key := range slices.Sorted(maps.Keys(n.lines)) {
		said := n.lines[key].said
		for word, value := range said {
			size += len(word) + len(value) + 6
		}
		if size += len(key) + 6; len(said) > 0 && size <= maxRecord {
			r[key] = said
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
