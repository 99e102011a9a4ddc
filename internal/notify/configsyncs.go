package notify

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// configSyncNotReady is the topic with a state for each ConfigSync of the namespace.
const configSyncNotReady v1alpha1.AlertTopic = "ConfigSyncNotReady"

// maxConfigSyncs bounds the ConfigSyncs that fire at a time in a channel, and so its record. Others follow when those have recovered.
const maxConfigSyncs = 64

// ConfigSyncs is a cache of ConfigSyncs. A *kube.Watched implements it.
type ConfigSyncs interface {
	List() []*v1alpha1.ConfigSync
	// Undecodable returns the errors of the ConfigSyncs that are not in the list.
	Undecodable() []*kube.UndecodableError
	// Seen reports whether the list has all ConfigSyncs of a namespace.
	Seen(namespace string) bool
}

// key returns the key of the change in the record: the topic, or topic/name for a ConfigSync.
func (c *change) key() v1alpha1.AlertTopic {
	if c.ConfigSync == "" {
		return c.Topic
	}
	return c.Topic + "/" + v1alpha1.AlertTopic(c.ConfigSync)
}

// topicOfKey returns the topic of a key.
func topicOfKey(key v1alpha1.AlertTopic) v1alpha1.AlertTopic {
	topic, _, _ := strings.Cut(string(key), "/")
	return v1alpha1.AlertTopic(topic)
}

// readConfigSyncs gives the channels that want them the ConfigSyncs of their namespace. A ConfigSync that this version cannot decode has
// only its name, so its state does not change.
func (n *Notifier) readConfigSyncs() {
	known := false
	for _, ch := range n.channels {
		ch.configSyncs = nil
		ch.knowsConfigSyncs = n.ConfigSyncs != nil && slices.Contains(ch.webhook.Wanted(), configSyncNotReady) && n.ConfigSyncs.Seen(ch.gs.Namespace)
		known = known || ch.knowsConfigSyncs
	}
	if !known {
		return
	}
	list := slices.Clone(n.ConfigSyncs.List())
	for _, u := range n.ConfigSyncs.Undecodable() {
		list = append(list, &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Name}})
	}
	of := map[string]map[string]*v1alpha1.ConfigSync{} // by namespace and name
	for _, cs := range list {
		if of[cs.Namespace] == nil {
			of[cs.Namespace] = map[string]*v1alpha1.ConfigSync{}
		}
		of[cs.Namespace][cs.Name] = cs
	}
	for _, ch := range n.channels {
		if ch.knowsConfigSyncs {
			ch.configSyncs = of[ch.gs.Namespace]
		}
	}
}

// dueConfigSyncs returns the changes of ConfigSyncs that have lasted for settle. One that is under way keeps its state.
func (ch *channel) dueConfigSyncs(t topic, now time.Time, settle time.Duration) []change {
	if !ch.knowsConfigSyncs {
		return nil
	}
	ch.underWay = map[v1alpha1.AlertTopic]bool{}
	names := map[string]bool{}
	for name := range ch.configSyncs {
		names[name] = true
	}
	firing := 0
	for key := range ch.sent {
		if topic, name, _ := strings.Cut(string(key), "/"); topic == string(t.name) {
			firing++
			names[name] = true // also of one that was deleted
		}
	}
	var changes []change
	for _, name := range slices.Sorted(maps.Keys(names)) {
		one := topic{name: (&change{Topic: t.name, ConfigSync: name}).key(), state: t.state}
		in := configSyncInput(ch.gs, ch.configSyncs[name], now)
		_, sent := ch.sent[one.name]
		fails := t.state(in).text != ""
		switch {
		case !fails && in.verdict.Phase != request.Succeeded && in.verdict.Phase != request.Paused:
			ch.underWay[one.name] = true // changedAt stays: runs may follow each other faster than settle
			continue
		case fails && !sent && firing >= maxConfigSyncs:
			delete(ch.changedAt, one.name)
			continue
		case fails && !sent:
			firing++
		}
		for _, c := range ch.dueState(one, in, settle) {
			changes = append(changes, aboutConfigSync(c, t.name, name, ch.gs.Namespace, ch.configSyncs[name]))
		}
	}
	isGone := func(key v1alpha1.AlertTopic, _ time.Time) bool {
		topic, name, _ := strings.Cut(string(key), "/")
		return topic == string(t.name) && !names[name]
	}
	maps.DeleteFunc(ch.changedAt, isGone)
	maps.DeleteFunc(ch.absentAt, isGone)
	return changes
}

// configSyncInput returns the input for a topic of a ConfigSync of the namespace of gs; nil means that it was deleted.
func configSyncInput(gs *v1alpha1.GatewaySync, cs *v1alpha1.ConfigSync, now time.Time) input {
	in := input{GatewaySync: gs, verdict: request.Verdict{Phase: request.Succeeded, Message: "it was deleted, or is not watched any more"}, now: now}
	if cs == nil {
		return in
	}
	in.verdict = request.ReadConfig(cs, "")
	if c := meta.FindStatusCondition(cs.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		in.ready = *c
	}
	return in
}

// configSyncFails returns why a ConfigSync does not become ready by itself at once: its last run or one of its objects failed, or a user has to
// act.
func configSyncFails(in input) situation {
	v := in.verdict
	failed := v.Phase == request.Failed || v.Reason == v1alpha1.ReasonUnhealthy
	switch class := v.Reason.Class(); {
	case failed, v.Phase == request.Held, v.Phase == request.Progressing && class == v1alpha1.ClassRetry:
		return situation{text: string(v.Reason) + ": " + v.Message, reason: v.Reason, severity: severityOf(v.Reason, failed), since: in.ready.LastTransitionTime.Time}
	}
	return situation{}
}

// aboutConfigSync returns a change of a ConfigSync as it is sent. cs is nil if it was deleted.
func aboutConfigSync(c change, topic v1alpha1.AlertTopic, name, namespace string, cs *v1alpha1.ConfigSync) change {
	c.Topic, c.ConfigSync, c.Text = topic, name, failure.Cut("ConfigSync "+name+": "+c.Text, maxText)
	if c.State == Firing {
		c.Next = "stoker config status " + name + " --namespace " + namespace
	}
	if cs != nil && cs.Spec.Source.Git != nil {
		c.Link = giturl.WebOf(cs.Spec.Source.Git.RepoURL, "").Commit(c.Commit)
	}
	return c
}
