package sync_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/record"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// embedding is a view that embeds another one.
func embedding(other string) string {
	return `{"root": {"children": [{"props": {"path": "` + other + `"}, "type": "ia.display.view"}], "type": "ia.container.flex"}}`
}

// about returns the notes about references.
func about(r *sync.Report) (list []string) {
	for _, n := range r.Notes {
		if strings.Contains(n, "names the") || strings.Contains(n, "names in files") {
			list = append(list, n)
		}
	}
	return list
}

func TestReferences(t *testing.T) {
	const other = "projects/line/com.inductiveautomation.perspective/views/other"
	otherView := []gitserver.Edit{
		gitserver.Write(other+"/view.json", `{}`),
		gitserver.Write(other+"/resource.json", `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["view.json"],"attributes":{}}`),
	}
	start := func(t *testing.T, policy v1alpha1.ReferencePolicy) *bench {
		b := newBench(t, simulator.Options{})
		b.target.Profile.References = policy
		b.push(append(firstCommit(), otherView...)...)
		b.push(gitserver.Write(view, embedding("other")))
		require.Empty(t, about(b.synced()))
		return b
	}
	t.Run("warn", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesWarn)
		b.push(gitserver.Write(view, embedding("othr")))
		notes := about(b.synced())
		require.Len(t, notes, 1)
		assert.Contains(t, notes[0], view+"#/")
		assert.Contains(t, notes[0], `children/0/props/path" names the view "othr", which the project "line" and its parents do not have (did you mean "other"?)`)
		assert.Equal(t, embedding("othr"), b.read(view))

		b.push(gitserver.Write(db+"/config.json", `{"url": "another"}`))
		notes = about(b.synced())
		require.Len(t, notes, 1, "the next commit has the mistake still, and did not make it")
		assert.Contains(t, notes[0], "names in files that do not exist, as before this commit: 1 ")
		b.push(gitserver.Write(view, embedding("other")))
		require.Empty(t, about(b.synced()))
	})
	t.Run("refuse", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesRefuse)
		good := b.target.Commit
		b.gw.Requests.Reset()
		b.push(gitserver.Delete(other+"/view.json"), gitserver.Delete(other+"/resource.json"), gitserver.Write(db+"/config.json", `{"url": "another"}`))
		for range 2 {
			r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonReferenceMissing)
			assert.Contains(t, r.Message, `names the view "other"`)
			assert.Equal(t, good, r.Commit)
			assert.Equal(t, `{"url": "jdbc"}`, b.read(db+"/config.json"), "nothing of the commit is written")
			assert.Equal(t, `{}`, b.read(other+"/view.json"))
		}
		assert.Zero(t, b.gw.Requests.Count(scanProjects))
		b.push(append(otherView, gitserver.Write(db+"/config.json", `{"url": "third"}`))...)
		require.Empty(t, about(b.synced()))

		b.target.Profile.DryRun = true
		b.push(gitserver.Write(view, embedding("gone")))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonReferenceMissing)
	})
	t.Run("refuse the first commit", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.target.Profile.References = v1alpha1.ReferencesRefuse
		b.push(append(firstCommit(), gitserver.Write(view, embedding("other")))...)
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonReferenceMissing)
		assert.Empty(t, b.read(view))
	})
	t.Run("a view and a database of the gateway", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesRefuse)
		for path, content := range map[string]string{ // setup: as a Designer and the gateway's page write them
			"projects/line/com.inductiveautomation.perspective/views/local/view.json": `{}`,
			"config/resources/core/ignition/database-connection/local/resource.json":  `{"attributes": {}, "files": []}`,
		} {
			b.put(path, content)
		}
		query := func(database string) gitserver.Edit {
			return gitserver.Write("projects/line/ignition/named-query/q/resource.json", `{"files": [], "attributes": {"database": "`+database+`"}}`)
		}
		b.push(gitserver.Write(view, embedding("local")), query("local"))
		require.Empty(t, about(b.synced()))
		b.push(query("locale"))
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonReferenceMissing)
		assert.Contains(t, r.Message, `named-query/q/resource.json#/attributes/database" names the database connection "locale", which does not exist`)
	})
	t.Run("ignore", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesIgnore)
		b.push(gitserver.Write(view, embedding("gone")))
		require.Empty(t, about(b.synced()))
	})
	t.Run("a rollback is not refused", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesWarn)
		bad := b.push(gitserver.Write(view, embedding("gone")))
		b.synced()
		b.push(gitserver.Write(view, embedding("other")))
		b.synced()
		b.target.Profile.References, b.target.Commit = v1alpha1.ReferencesRefuse, bad
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonReferenceMissing)
		b.target.RequestedRollback = true
		require.Len(t, about(b.synced()), 1)
	})
	t.Run("a lost volume gets the commit that it had", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.target.Profile.References = v1alpha1.ReferencesRefuse
		commit := b.push(append(firstCommit(), gitserver.Write(view, embedding("gone")))...)
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonReferenceMissing)
		require.NoError(t, b.engine.SetRecord(record.Record{Ref: "main", Commit: commit}))
		require.Len(t, about(b.synced()), 1)
	})
	t.Run("an agent that started again", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesWarn)
		b.push(gitserver.Write(view, embedding("gone")))
		b.synced()
		b.again()
		b.target.Profile.References = v1alpha1.ReferencesRefuse
		b.push(gitserver.Write(db+"/config.json", `{"url": "another"}`))
		assert.Len(t, about(b.synced()), 1, "what the last commit lacks is known from git")
	})
	t.Run("the first commit after a start is not delayed", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesWarn)
		b.again()
		b.push(gitserver.Write(view, embedding("gone")))
		assert.Len(t, about(b.synced()), 1, "the names are checked when the gateway has loaded the files")
		b.again()
		b.engine.Once = true
		b.push(gitserver.Write(view, embedding("lost")))
		assert.Empty(t, about(b.synced()), "a process for one sync does not read all files")
	})
	t.Run("templates", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesRefuse)
		b.target.Profile.Mappings[0].Template = true
		b.target.Profile.Vars = map[string]string{"page": "other"}
		b.push(gitserver.Write(view, embedding("{{.Vars.page}}")))
		require.Empty(t, about(b.synced()))
		b.target.Profile.Vars = map[string]string{"page": "gone"}
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonReferenceMissing)
	})
	t.Run("a new volume", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.target.Profile.References, b.target.BeforeStart = v1alpha1.ReferencesRefuse, true
		b.push(append(firstCommit(),
			gitserver.Write("config/resources/core/ignition/identity-provider/a/config.json", `{"profile": {"type": "internal"}, "settings": {"userSource": "made-by-the-gateway"}}`))...)
		b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	})
}

// A folder of resources is named for the module that loads them.
func TestReferencesToModules(t *testing.T) {
	const report = "projects/line/com.inductiveautomation.reporting/reports/shift/data.bin"
	route := "GET /data/api/v1/modules/healthy"
	start := func(t *testing.T, policy v1alpha1.ReferencePolicy) *bench {
		b := newBench(t, simulator.Options{Modules: []string{"com.inductiveautomation.perspective"}})
		b.target.Profile.References = policy
		b.push(firstCommit()...)
		require.Empty(t, about(b.synced()))
		b.gw.Requests.Reset()
		return b
	}
	t.Run("warn", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesWarn)
		b.push(gitserver.Write(view, `{"a": 1}`))
		require.Empty(t, about(b.synced()))
		assert.Zero(t, b.gw.Requests.Count(route), "the commit brings no module")
		b.push(gitserver.Write(report, "a"))
		assert.Equal(t, []string{`"` + report + `" names the module "com.inductiveautomation.reporting", which is not among the healthy modules of the gateway`}, about(b.synced()))
		assert.Equal(t, 1, b.gw.Requests.Count(route))
		b.push(gitserver.Write(report, "b"), gitserver.Write(report+"2", "c"))
		assert.Empty(t, about(b.synced()), "this commit did not bring it")
	})
	t.Run("the first commit after a start", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesWarn)
		b.again()
		b.push(gitserver.Write(report, "a"))
		assert.Len(t, about(b.synced()), 1)
	})
	t.Run("refuse", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesRefuse)
		b.push(gitserver.Write(report, "a"))
		for range 2 {
			r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonReferenceMissing)
			assert.Contains(t, r.Message, `names the module "com.inductiveautomation.reporting"`)
		}
		assert.Empty(t, b.read(report))
	})
	t.Run("config resources", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesRefuse)
		b.push(gitserver.Write("config/resources/core/com.inductiveautomation.sfc/settings/a/resource.json", `{"files": [], "attributes": {}}`))
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonReferenceMissing)
		assert.Contains(t, r.Message, `names the module "com.inductiveautomation.sfc"`)
	})
	// If the gateway does not say which modules it runs, the commit is delivered without a check of the modules.
	for _, c := range []struct {
		name  string
		fault simulator.Fault
	}{
		{"an error", simulator.Fault{Status: 500}},
		{"forbidden", simulator.Fault{Status: 403}},
		{"other fields", simulator.Fault{Status: 200, Body: `{"items":[{"moduleName":"Perspective"}]}`}},
		{"other ids", simulator.Fault{Status: 200, Body: `{"items":[{"id":"7"}]}`}},
		{"no modules", simulator.Fault{Status: 200, Body: `{"items":[]}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := start(t, v1alpha1.ReferencesRefuse)
			c.fault.Route = route
			b.fault(c.fault)
			b.push(gitserver.Write(report, "a"))
			assert.Empty(t, about(b.synced()))
		})
	}
	t.Run("a gateway that does not run", func(t *testing.T) {
		b := start(t, v1alpha1.ReferencesRefuse)
		b.set(simulator.Down)
		b.push(gitserver.Write(report, "a"))
		b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
		assert.Equal(t, "a", b.read(report))
	})
}

func TestEmbeddedSecret(t *testing.T) {
	const planted = `{"url": "jdbc", "password": {"type": "Embedded", "data": {"encrypted_key": "planted-k", "iv": "i", "ciphertext": "planted-c"}}}`
	says := func(r *sync.Report) (n int) {
		for _, note := range r.Notes {
			assert.NotContains(t, note, "planted")
			if assert.Contains(t, note, db+"/config.json") {
				n++
			}
		}
		return n
	}
	t.Run("warn", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.push(append(firstCommit(), gitserver.Write(db+"/config.json", planted))...)
		assert.Equal(t, 1, says(b.synced()))
		assert.Equal(t, planted, b.read(db+"/config.json"))
		b.push(gitserver.Write(view, `{"one": 2}`))
		assert.Zero(t, says(b.synced()), "no note about a file that the sync does not write")
	})
	t.Run("refuse", func(t *testing.T) {
		b := newBench(t, simulator.Options{}).delivered()
		b.target.Profile.EmbeddedSecretPolicy = v1alpha1.EmbeddedSecretRefuse
		b.push(gitserver.Write(db+"/config.json", planted), gitserver.Write(view, `{"one": 2}`))
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonEmbeddedSecret)
		assert.Contains(t, r.Message, db+"/config.json")
		assert.NotContains(t, r.Message, "planted")
		assert.Equal(t, `{"one": 1}`, b.read(view), "nothing of the commit is written")
		b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
		require.Empty(t, b.synced().Notes)
	})
	t.Run("a file of an earlier commit", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		b.target.Profile.EmbeddedSecretPolicy = v1alpha1.EmbeddedSecretRefuse
		b.push(append(firstCommit(), gitserver.Write(db+"/config.json", planted))...)
		b.target.Profile.EmbeddedSecretPolicy = v1alpha1.EmbeddedSecretWarn
		b.synced()
		b.target.Profile.EmbeddedSecretPolicy = v1alpha1.EmbeddedSecretRefuse
		b.push(gitserver.Write(view, `{"one": 2}`))
		b.synced() // the policy does not apply to files of earlier commits
	})
}
