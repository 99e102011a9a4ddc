// Package notify sends notifications about GatewaySyncs, and the ConfigSyncs beside them, to Slack, PagerDuty and other receivers, and sets the
// status of commits at the forge (spec.alerting). In this package, a receiver is what gets messages, not Stoker's receiver of webhooks.
//
// It is level-triggered: it compares each status with a record of what it has sent, and sends the difference. If a state ends before
// the notifier reaches the receiver, it sends nothing about the state, unless PagerDuty may have got the beginning. Events wait in a
// short queue, because the status of the moment at which one is sent may be about another commit; a restart forgets all of them but
// the last. The record is an annotation of the Lease that elects one replica, so a restart repeats no notification that a receiver accepted.
// There are two exceptions: a crash between a message and its record, and channels for which the record has no room.
//
// The notifier is part of the command line, and not of the receiver of webhooks or the agents. That receiver accepts untrusted callers and
// connects only to the API server, and gateway pods need no access to the Internet. The notifier runs from the image of the hook
// Jobs.
package notify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/internal/status"
)

const (
	// minSendInterval is the pause after a message to a receiver about a GatewaySync. Changes in this time are sent together after it.
	minSendInterval = time.Minute
	// minRetryPause and maxRetryPause bound the pause after a failure, unless the receiver asks for a longer one.
	minRetryPause, maxRetryPause = 5 * time.Second, 10 * time.Minute
	// eventLifetime is how long the notifier tries to send an event. It tries to send a state for as long as the state lasts.
	eventLifetime = time.Hour
	// compareInterval is the longest time between two comparisons, because a status may get too old without a change, and
	// minCompareInterval the shortest.
	compareInterval, minCompareInterval = 30 * time.Second, time.Second
	// maxParallel bounds parallel messages, and maxOfNamespace those of one namespace, whose receivers may be slow.
	maxParallel, maxOfNamespace = 32, 4
	// readTimeout bounds the read of a Secret, and saveTimeout the write of the record.
	readTimeout, saveTimeout = 10 * time.Second, 5 * time.Second
)

// Config configures a Notifier.
type Config struct {
	Core kube.Core
	// List returns the GatewaySyncs that are known, and whether those are all.
	List func() (list []*v1alpha1.GatewaySync, complete bool)
	// Changed receives a value when a GatewaySync or ConfigSync may have changed.
	Changed <-chan struct{}
	// ConfigSyncs has the ConfigSyncs for the topic ConfigSyncNotReady; nil for none.
	ConfigSyncs ConfigSyncs
	Client      httpclient.Client
	// Cluster is the name of the cluster in messages; may be empty.
	Cluster string
	// Page is the address of a page about a GatewaySync, with {namespace} and {name} in it, or "".
	Page string
	// Settle is how long a state must last before it is sent as firing, and be over before it is sent as resolved.
	Settle time.Duration
	// Now is the clock of the API server, whose times the statuses have; nil means that of this node.
	Now func() time.Time
	// Load and Save read and write the record of what was sent.
	Load func(context.Context) (string, error)
	Save func(context.Context, string) error
	// Sent is called with "sent" for each change that a receiver accepted, and with "failed" for each attempt that failed. It must be safe
	// for concurrent use.
	Sent func(kind v1alpha1.AlertType, result string)
	Log  *slog.Logger
}

// Notifier sends notifications about GatewaySyncs.
type Notifier struct {
	Config
	channels map[string]*channel // by key
	saved    string              // the record that was written last
	previous record              // of channels that are not known yet, or not now
	// sending is the number of messages on their way by namespace. Their results arrive on results.
	sending map[string]int
	results chan result
}

// result is what became of a message.
type result struct {
	channel   *channel
	namespace string
	accepted  []change
	uncertain []change // that the receiver may have
	err       error
}

// New returns a Notifier.
func New(c Config) *Notifier {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Notifier{Config: c, channels: map[string]*channel{}, sending: map[string]int{}, results: make(chan result, maxParallel)}
}

// Run sends notifications until ctx is done. It returns an error if the record cannot be read or written.
func (n *Notifier) Run(ctx context.Context) error {
	text, err := n.Load(ctx)
	if err != nil {
		return fmt.Errorf("read the record of notifications: %w", err)
	}
	n.saved = text
	n.previous = n.decodeRecord(text)
	for {
		for len(n.results) > 0 {
			n.finished(<-n.results, n.Now())
		}
		n.configure(n.List())
		n.startDue(ctx, n.Now())
		if err := n.save(ctx); err != nil {
			return errors.Join(err, n.finish(ctx))
		}
		if !backoff.Wait(ctx, minCompareInterval) {
			return n.finish(ctx)
		}
		select {
		case <-ctx.Done():
			return n.finish(ctx)
		case r := <-n.results:
			n.finished(r, n.Now())
		case <-n.Changed:
		case <-time.After(n.pause(n.Now())):
		}
	}
}

// pause returns the time until the next comparison if no GatewaySync changes.
func (n *Notifier) pause(now time.Time) time.Duration {
	d := compareInterval
	for _, ch := range n.channels {
		if next, ok := ch.next(n.Settle); ok {
			d = min(d, next.Sub(now))
		}
	}
	return max(d, minCompareInterval)
}

// startDue begins to send what is due. A message that waits for a slow receiver delays only those about the same GatewaySync to that
// receiver. If maxOfNamespace messages wait, they delay all of their namespace, and maxParallel messages delay all.
func (n *Notifier) startDue(ctx context.Context, now time.Time) {
	for _, ch := range n.channels {
		changes := ch.due(now, n.Settle)
		namespace := ch.gs.Namespace
		if len(changes) == 0 || ch.busy || now.Before(ch.nextSend) || n.sending[namespace] == maxOfNamespace || n.total() == maxParallel {
			continue
		}
		ch.busy = true
		n.sending[namespace]++
		gs, webhook := ch.gs, ch.webhook
		go func() {
			accepted, err := n.deliver(ctx, gs, webhook, changes, now)
			r := result{channel: ch, namespace: namespace, accepted: accepted, err: err}
			if _, uncertain := errors.AsType[*uncertainError](err); uncertain {
				r.uncertain = changes[len(accepted) : len(accepted)+1]
			}
			n.results <- r
		}()
	}
}

// total returns the number of messages on their way.
func (n *Notifier) total() int {
	sum := 0
	for _, of := range n.sending {
		sum += of
	}
	return sum
}

// finished records the result of a message.
func (n *Notifier) finished(r result, now time.Time) {
	if n.sending[r.namespace]--; n.sending[r.namespace] == 0 {
		delete(n.sending, r.namespace)
	}
	r.channel.busy = false
	r.channel.record(r.accepted, r.uncertain, r.err, now)
}

// finish waits for the messages on their way, which have a bounded time, and records them: they must not be sent again.
func (n *Notifier) finish(ctx context.Context) error {
	for n.total() > 0 {
		n.finished(<-n.results, n.Now())
	}
	return n.save(ctx)
}

// save writes the record if it has changed.
func (n *Notifier) save(ctx context.Context) error {
	text := n.encodeRecord()
	if text == n.saved {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	if err := n.Save(ctx, text); err != nil {
		return fmt.Errorf("write the record of notifications: %w", err)
	}
	n.saved = text
	return nil
}

// configure sets the channels to those of the specs, and drops the others. While the list is not complete, it keeps their records, and those
// of an earlier notifier.
func (n *Notifier) configure(list []*v1alpha1.GatewaySync, complete bool) {
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
				ch = newChannel(n.previous[key])
				delete(n.previous, key)
			}
			webhook := &a.Webhooks[i]
			if channels[key] != nil { // an earlier entry of the list has the same receiver: it gets the topics of both
				webhook = ch.webhook.DeepCopy()
				webhook.Topics = slices.Concat(webhook.Wanted(), a.Webhooks[i].Wanted())
				webhook.SigningSecretRef = cmp.Or(webhook.SigningSecretRef, a.Webhooks[i].SigningSecretRef)
				webhook.CASecretRef = cmp.Or(webhook.CASecretRef, a.Webhooks[i].CASecretRef)
			}
			ch.gs, ch.webhook = gs, webhook
			channels[key] = ch
		}
	}
	for key, ch := range n.channels {
		if !complete && channels[key] == nil && len(ch.sent) > 0 { // its GatewaySync may come back
			if n.previous == nil {
				n.previous = record{}
			}
			n.previous[key] = ch.sent
		}
	}
	if n.channels = channels; complete {
		n.previous = nil
	}
	n.readConfigSyncs()
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

// deliver sends changes to the receiver of a webhook. It returns those that the receiver accepted, also with an error.
func (n *Notifier) deliver(ctx context.Context, gs *v1alpha1.GatewaySync, webhook *v1alpha1.AlertWebhook, changes []change, now time.Time) ([]change, error) {
	ctx = context.WithoutCancel(ctx) // an interrupted message may have arrived, and would be sent again; the client bounds the time
	c, err := n.credentials(ctx, gs.Namespace, webhook)
	var accepted []change
	if err == nil {
		client := n.Client
		if !c.ca.Empty() {
			client.CA = []byte(c.ca.Reveal())
		}
		if webhook.Type == v1alpha1.AlertCommitStatus {
			accepted, err = n.setStatus(ctx, client, gs, c.integrationKey, changes)
		} else {
			accepted, err = send(ctx, client, webhook.Type, c, n.notice(gs, changes[:min(len(changes), maxChanges)]), now)
		}
	}
	log := n.Log.With("namespace", gs.Namespace, "gatewaysync", gs.Name, "type", string(webhook.Type))
	for _, c := range accepted {
		n.Sent(webhook.Type, "sent")
		log.Info("notification sent", "topic", string(c.key()), "state", string(c.State))
	}
	if err != nil {
		n.Sent(webhook.Type, "failed")
		log.Warn("notification failed; trying again", "error", err)
	}
	return accepted, err
}

// notice returns the message about changes.
func (n *Notifier) notice(gs *v1alpha1.GatewaySync, changes []change) notice {
	web := giturl.WebOf(gs.Spec.Git.Repo, gs.Spec.Provider())
	changes = slices.Clone(changes)
	for i := range changes {
		c := &changes[i]
		if c.ConfigSync != "" {
			continue // aboutConfigSync has set Link and Next
		}
		c.Link = web.Commit(c.Commit)
		if c.State == Firing {
			c.Next = status.NextOf(gs.Name+" --namespace "+gs.Namespace, v1alpha1.Reason(c.reason))
		}
	}
	return notice{Cluster: n.Cluster, Namespace: gs.Namespace, GatewaySync: gs.Name, Page: n.page(gs), Changes: changes, uid: string(gs.UID)}
}

// credentials reads the Secrets of a receiver. It is called for each message, so that a new value takes effect at once.
func (n *Notifier) credentials(ctx context.Context, namespace string, w *v1alpha1.AlertWebhook) (c credentials, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, one := range []struct {
		ref  *v1alpha1.SecretKeyRef
		into *secret.String
		most int
	}{{w.URLSecretRef, &c.url, maxSecretSize}, {w.IntegrationKeySecretRef, &c.integrationKey, maxSecretSize}, {w.SigningSecretRef, &c.signingKey, maxSecretSize},
		{w.CASecretRef, &c.ca, maxCASize}} {
		if one.ref == nil {
			continue
		}
		s, err := n.Core.CoreV1().Secrets(namespace).Get(ctx, one.ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err):
			return c, fmt.Errorf("the Secret %s cannot be read: add it to notifier.secrets of the chart, or bind a Role that allows to get it: %w", one.ref.Name, err)
		case err != nil:
			return c, fmt.Errorf("read the Secret %s: %w", one.ref.Name, err)
		}
		if *one.into, err = secretValue(s, one.ref.Key, one.most); err != nil {
			return c, err
		}
	}
	return c, nil
}

// maxSecretSize bounds a value of a Secret, and maxCASize a bundle of certificates, in bytes.
const maxSecretSize, maxCASize = 4096, 256 << 10

func secretValue(s *corev1.Secret, key string, most int) (secret.String, error) {
	value := strings.TrimRight(string(s.Data[key]), " \r\n")
	if value == "" || len(value) > most {
		return secret.String{}, fmt.Errorf("the key %s of the Secret %s must have 1 to %d bytes", key, s.Name, most)
	}
	return secret.New(value), nil
}

// page returns the address of the page about a GatewaySync, or "". Both names are DNS names.
func (n *Notifier) page(gs *v1alpha1.GatewaySync) string {
	return strings.NewReplacer("{namespace}", gs.Namespace, "{name}", gs.Name).Replace(n.Page)
}

// Validate returns what is wrong with the name of the cluster and the address of the page.
func (c Config) Validate() error {
	u, err := url.Parse(c.Page)
	switch {
	case len(c.Cluster) > maxCluster || strings.ContainsFunc(c.Cluster, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("the name of the cluster must have at most %d printable characters of ASCII", maxCluster)
	case c.Page == "":
		return nil
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil:
		return errors.New("the address of the page must begin with https://, and must not have a user")
	case len(c.Page) > maxPage || strings.ContainsFunc(c.Page, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("<>|\"`\\", r) }):
		return fmt.Errorf("the address of the page must have at most %d characters, and none that an address has to escape", maxPage)
	}
	return nil
}

// maxPage and maxCluster bound what Validate checks.
const maxPage, maxCluster = 200, 63
