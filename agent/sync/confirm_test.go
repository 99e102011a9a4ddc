package sync_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// emptied pushes a commit that deletes the project line and is held. It returns the commits before and after the deletion.
func (b *bench) emptied() (good, bad plan.ID) {
	b.t.Helper()
	b.target.Facts.CRName = "plant"
	good = b.push(append(firstCommit(), withProject("keep"))...)
	b.synced()
	bad = b.push(gitserver.Delete("projects/line/project.json"), gitserver.Delete(view), gitserver.Delete(viewDir+"/resource.json"))
	r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
	assert.Contains(b.t, r.Message, "3 files would be deleted")
	if b.target.File == "" {
		assert.Contains(b.t, r.Message, "; to approve this: stoker sync plant --confirm-deletion="+bad.Short())
	}
	return good, bad
}

func withProject(name string) gitserver.Edit {
	return gitserver.Write("projects/"+name+"/project.json", project("", false))
}

func TestMassDeletionApproval(t *testing.T) {
	for name, approve := range map[string]func(b *bench, good, bad plan.ID){
		"full commit":   func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = bad.String() },
		"rollout back":  func(b *bench, _, _ plan.ID) { b.target.RolloutRollback = true },
		"short commit":  func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = bad.Short() },
		"agent restart": func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = bad.String(); b.again() },
		"other commit meanwhile": func(b *bench, good, bad plan.ID) {
			b.target.ConfirmDeletion, b.target.Commit = bad.String(), good
			b.synced()
			b.target.Commit = bad
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			good, bad := b.emptied()
			approve(b, good, bad)
			b.synced()
			assert.Empty(t, b.read(view))
			assert.NotEmpty(t, b.read("projects/keep/project.json"))
		})
	}
	for name, refuse := range map[string]func(b *bench, good, bad plan.ID){
		"previous commit": func(b *bench, good, _ plan.ID) { b.target.ConfirmDeletion = good.String() },
		"six digits":      func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = bad.String()[:6] },
		"upper case":      func(b *bench, _, bad plan.ID) { b.target.ConfirmDeletion = strings.ToUpper(bad.String()) + "X" },
		"force-sync":      func(b *bench, _, _ plan.ID) { b.target.Force = "now" },
		"later commit": func(b *bench, _, bad plan.ID) {
			b.target.ConfirmDeletion = bad.String()
			b.push(gitserver.Write("projects/keep/README.md", "other"))
		},
	} {
		t.Run("refused/"+name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			good, bad := b.emptied()
			refuse(b, good, bad)
			b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
			assert.NotEmpty(t, b.read(view))
		})
	}
}

// A standalone agent has no cluster, so no command of stoker helps its user.
func TestMassDeletionApprovalInFile(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.target.File = "/etc/stoker/gatewaysync.yaml"
	_, bad := b.emptied()
	r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
	assert.Contains(t, r.Message, "; to approve this: set the annotation stoker.io/confirm-deletion to "+bad.Short()+" in /etc/stoker/gatewaysync.yaml")
	assert.NotContains(t, r.Message, "stoker sync")
}
