package notify

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
)

// configSyncs is a cache of ConfigSyncs; unread are the names of those that cannot be decoded. While unseen is true, the list is not complete.
type configSyncs struct {
	list   []*v1alpha1.ConfigSync
	unread []string
	unseen bool
}

func (c *configSyncs) List() []*v1alpha1.ConfigSync { return c.list }
func (c *configSyncs) Seen(string) bool             { return !c.unseen }
func (c *configSyncs) Undecodable() (list []*kube.UndecodableError) {
	for _, name := range c.unread {
		list = append(list, &kube.UndecodableError{Kind: v1alpha1.KindConfigSync, Namespace: "plant", Name: name})
	}
	return list
}

// set makes the last run of a ConfigSync of the namespace plant end with an outcome.
func (c *configSyncs) set(name string, phase v1alpha1.OutcomePhase, reason v1alpha1.Reason, message string) {
	cs := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: name, Generation: 1}}
	cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: "https://github.com/plant/objects.git", Branch: "main"}
	cs.Status.ObservedGeneration, cs.Status.ObservedRequest = 1, desiredref.Key(cs)
	cs.Status.Outcome = &v1alpha1.Outcome{Phase: phase, Ref: "main", Commit: strings.Repeat("c", 40), Reason: reason, Message: message}
	c.delete(name)
	c.list = append(c.list, cs)
}

func (c *configSyncs) delete(name string) {
	c.list = slices.DeleteFunc(slices.Clone(c.list), func(cs *v1alpha1.ConfigSync) bool { return cs.Name == name })
}

func (c *configSyncs) breaks(name string) {
	c.set(name, v1alpha1.OutcomeFailed, v1alpha1.ReasonManifestInvalid, "site.yaml: line 3: unexpected end")
}

func (c *configSyncs) ready(name string) {
	c.set(name, v1alpha1.OutcomeSucceeded, v1alpha1.ReasonSynced, "6 objects of ccccccc are applied")
}

// newConfigPlant returns a plant whose webhook is about ConfigSyncs.
func newConfigPlant(t *testing.T, hook v1alpha1.AlertWebhook) (*plant, *configSyncs) {
	hook.Topics = []v1alpha1.AlertTopic{configSyncNotReady}
	p, c := newPlant(t, hook), &configSyncs{}
	p.notifier.ConfigSyncs = c
	return p, c
}

var slackHook = v1alpha1.AlertWebhook{Type: v1alpha1.AlertSlack, URLSecretRef: ref("slack")}

func TestConfigSyncNotReady(t *testing.T) {
	p, c := newConfigPlant(t, slackHook)
	p.notifier.Cluster, p.notifier.Page = "north", "https://grafana.example.com/{namespace}/{name}"
	c.ready("site")
	c.set("mail", v1alpha1.OutcomeProgressing, v1alpha1.ReasonProgressing, "1 of 6 objects is not healthy yet")
	p.breaks() // a message about the GatewaySync is of another topic
	assert.Empty(t, p.passes(time.Hour))
	c.breaks("site")
	assert.Empty(t, p.passes(50*time.Second), "a problem must settle before it is sent")
	got := p.passes(time.Hour)
	require.Len(t, got, 1, "the start must be sent once")
	page := " <https://grafana.example.com/plant/line|page> <https://github.com/plant/objects/commit/" + strings.Repeat("c", 40) + "|ccccccc>"
	assert.JSONEq(t, `{"text": ":red_circle: `+"`north plant/line` *ConfigSyncNotReady firing*: `ConfigSync site: ManifestInvalid: site.yaml: line 3: unexpected end`"+
		" next: `stoker config status site --namespace plant`"+page+`"}`, got[0])

	c.set("site", v1alpha1.OutcomeProgressing, v1alpha1.ReasonProgressing, "a run is under way")
	assert.Empty(t, p.passes(time.Hour), "a run is no recovery")
	p.restart()
	p.notifier.ConfigSyncs = c
	c.unseen, c.list = true, nil
	assert.Empty(t, p.passes(time.Hour), "a ConfigSync that was not listed yet has not recovered")
	c.unseen, c.unread = false, []string{"site"}
	assert.Empty(t, p.passes(time.Hour), "nor has one that cannot be decoded")
	c.unread = nil
	c.ready("site")
	got = p.passes(time.Hour)
	require.Len(t, got, 1, "the end must be sent once")
	assert.Contains(t, got[0], "*ConfigSyncNotReady resolved*: `ConfigSync site: it has ended after ")
	assert.Contains(t, got[0], ": 6 objects of ccccccc are applied`")
	assert.Empty(t, p.saved)
}

func TestConfigSyncStates(t *testing.T) {
	for name, c := range map[string]struct {
		phase  v1alpha1.OutcomePhase
		reason v1alpha1.Reason
		fires  bool
	}{
		"held":              {v1alpha1.OutcomeHeld, v1alpha1.ReasonNotOwned, true},
		"git away":          {v1alpha1.OutcomeProgressing, v1alpha1.ReasonGitUnreachable, true},
		"waits for another": {v1alpha1.OutcomeProgressing, v1alpha1.ReasonDependencyNotReady, false},
		"failed object":     {v1alpha1.OutcomeProgressing, v1alpha1.ReasonUnhealthy, true},
		"paused":            {v1alpha1.OutcomePaused, v1alpha1.ReasonPaused, false},
		"deadline is over":  {v1alpha1.OutcomeFailed, v1alpha1.ReasonProgressDeadlineExceeded, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, all := newConfigPlant(t, slackHook)
			all.set("site", c.phase, c.reason, "…")
			assert.Len(t, p.passes(time.Hour), map[bool]int{true: 1}[c.fires])
			all.delete("site")
			got := strings.Join(p.passes(time.Hour), "")
			assert.Equal(t, c.fires, strings.Contains(got, ": it was deleted, or is not watched any more`"), got)
		})
	}
}

// Runs that begin more often than settle neither hide a failure nor its end.
func TestConfigSyncRunsOften(t *testing.T) {
	p, c := newConfigPlant(t, slackHook)
	runs := func(end func(string)) (sent []string) {
		for range 20 { // sequence: runs
			c.set("site", v1alpha1.OutcomeProgressing, v1alpha1.ReasonProgressing, "a run is under way")
			sent = append(sent, p.passes(5*time.Second)...)
			end("site")
			sent = append(sent, p.passes(25*time.Second)...)
		}
		return sent
	}
	assert.Len(t, runs(c.breaks), 1)
	assert.Len(t, runs(c.ready), 1)
}

// A webhook that does not name the topic gets nothing about ConfigSyncs.
func TestConfigSyncNotReadyIsOptIn(t *testing.T) {
	p, c := newPlant(t, slackHook), &configSyncs{}
	p.notifier.ConfigSyncs = c
	c.breaks("site")
	assert.Empty(t, p.passes(time.Hour))
}

// Each ConfigSync has its own incident.
func TestIncidentsOfConfigSyncs(t *testing.T) {
	p, c := newConfigPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration")})
	c.breaks("mail")
	c.breaks("site")
	p.passes(10 * time.Minute)
	incident := func(name string) string {
		return "error plant/line ConfigSyncNotReady firing: ConfigSync " + name + ": ManifestInvalid: site.yaml: line 3: unexpected end"
	}
	mail, site := "stoker/uid-1/ConfigSyncNotReady/mail/ManifestInvalid/error/0", "stoker/uid-1/ConfigSyncNotReady/site/ManifestInvalid/error/0"
	assert.Equal(t, map[string]string{mail: incident("mail"), site: incident("site")}, p.receiver.open)
	c.ready("mail")
	p.passes(10 * time.Minute)
	assert.Equal(t, map[string]string{site: incident("site")}, p.receiver.open)
}

// The incidents of a topic that spec.alerting does not name any more are resolved.
func TestIncidentsOfRemovedTopics(t *testing.T) {
	p, c := newConfigPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertPagerDuty, URLSecretRef: ref("pagerduty"), IntegrationKeySecretRef: ref("integration")})
	topics := func(names ...v1alpha1.AlertTopic) {
		p.gs = p.gs.DeepCopy()
		p.gs.Spec.Alerting.Webhooks[0].Topics = names
	}
	topics("NotReady", "SyncFailed", configSyncNotReady)
	c.breaks("site")
	p.breaks()
	p.passes(10 * time.Minute)
	require.Len(t, p.receiver.open, 3)
	topics("NotReady")
	assert.Len(t, p.passes(time.Hour), 2)
	assert.Equal(t, []string{"stoker/uid-1/NotReady/TemplateFailed/error/1"}, slices.Sorted(maps.Keys(p.receiver.open)))
	assert.NotContains(t, p.saved, "SyncFailed", "nothing is left in the record")
}

// R10: the ConfigSyncs that fire at a time are bounded. A program learns the names from a field.
func TestManyConfigSyncs(t *testing.T) {
	p, c := newConfigPlant(t, v1alpha1.AlertWebhook{Type: v1alpha1.AlertWebhookCE, URLSecretRef: ref("events")})
	for i := range 100 {
		c.breaks(fmt.Sprintf("site-%03d", i))
	}
	names := func(state string) (list []string) {
		for _, text := range p.passes(time.Hour) {
			var e struct {
				Data struct {
					Changes []struct{ Topic, State, ConfigSync string }
				}
			}
			require.NoError(t, json.Unmarshal([]byte(text), &e))
			for _, one := range e.Data.Changes {
				if assert.Equal(t, "ConfigSyncNotReady", one.Topic); one.State == state {
					list = append(list, one.ConfigSync)
				}
			}
		}
		return list
	}
	first := names("firing")
	assert.Len(t, first, maxConfigSyncs)
	c.ready(first[0])
	c.ready(first[1])
	assert.Equal(t, []string{"site-064", "site-065"}, names("firing"), "others follow when some have recovered")
}
