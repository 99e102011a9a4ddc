package lead

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

func mapping(source string) v1alpha1.SyncProfile {
	return v1alpha1.SyncProfile{Mappings: []v1alpha1.Mapping{{Source: source, Destination: "projects"}}}
}

// Adding an incomplete profile must not stop gateways of other profiles.
func TestInvalidProfileInUse(t *testing.T) {
	const wrong = "spec.sync.profiles[next].mappings[0].source"
	synctest.Test(t, func(t *testing.T) {
		p := newPaper(t, 2)
		now := func() *v1alpha1.GatewaySyncStatus {
			signal(p.wake)
			time.Sleep(5 * time.Second)
			gs, _ := p.sync()
			return &gs.Status
		}
		p.lead(func() {
			st := now()
			assert.Equal(t, "valid: default", messageOf(st, v1alpha1.ConditionProfilesValid))

			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles["next"] = mapping("lines/{{.Vars.line") })
			st = now()
			assert.Equal(t, "True/ProfilesValid", condition(st, v1alpha1.ConditionProfilesValid))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionProfilesValid), "valid: default; used by no gateway, and wrong: next: "+wrong)
			assert.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionReady))
			assert.Empty(t, condition(st, v1alpha1.ConditionStalled))

			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles["default"] = mapping("{{end}}") })
			st = now()
			assert.Equal(t, "False/ProfilesInvalid", condition(st, v1alpha1.ConditionReady))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "spec.sync.profiles[default]")
			assert.NotContains(t, messageOf(st, v1alpha1.ConditionReady), "next", "Ready does not report an unused profile")
			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles["default"] = mapping("projects") })
			assert.Equal(t, "True/Synced", condition(now(), v1alpha1.ConditionReady))

			p.mu.Lock()
			p.Reports[1].Status.Profile = "next"
			p.mu.Unlock()
			st = now()
			assert.Equal(t, "False/ProfilesInvalid", condition(st, v1alpha1.ConditionProfilesValid))
			assert.Equal(t, "True/ProfilesInvalid", condition(st, v1alpha1.ConditionStalled))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), wrong)
		})
	})
}

func TestProfileOfUnreportedPod(t *testing.T) {
	for name, c := range map[string]struct{ asked, want string }{
		"no profile":      {"", "True/ProfilesValid"},
		"default profile": {"default", "True/ProfilesValid"},
		"invalid profile": {"next", "False/ProfilesInvalid"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFleet(1)
			s.GatewaySync.Spec.Sync.Profiles["next"] = mapping("{{if}}")
			s.Pods = append(s.Pods, newFleet(2).Pods[1])
			s.Pods[1].Annotations[v1alpha1.AnnotationProfile] = c.asked
			s.Flawed, s.Invalid = validate(s.GatewaySync)
			assert.Equal(t, c.want, condition(statusOf(s), v1alpha1.ConditionProfilesValid))
		})
	}
}

func TestUnusedInvalidProfilesAreReported(t *testing.T) {
	s := newFleet(0)
	s.GatewaySync.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"b": mapping("{{if}}"), "a": mapping("{{end}}")}
	s.Flawed, s.Invalid = validate(s.GatewaySync)
	st := statusOf(s)
	assert.Equal(t, "Unknown/NoGateways", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, "True/ProfilesValid", condition(st, v1alpha1.ConditionProfilesValid))
	assert.Contains(t, messageOf(st, v1alpha1.ConditionProfilesValid), "valid: none; used by no gateway, and wrong: a, b: [spec.sync.profiles[a]")
}

func TestInvalidSpecWithoutGateways(t *testing.T) {
	s := newFleet(1)
	p := mapping("projects")
	p.Prune = "mirrored"
	s.GatewaySync.Spec.Sync.Profiles["next"] = p
	s.Flawed, s.Invalid = validate(s.GatewaySync)
	assert.Empty(t, s.Flawed)
	assert.Equal(t, "False/ProfilesInvalid", condition(statusOf(s), v1alpha1.ConditionReady))
}
