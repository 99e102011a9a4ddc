package follow

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

func TestReadTarget(t *testing.T) {
	good := v1alpha1.SyncTargetSpec{Format: 1, Generation: 3, Ref: "main", RefName: "refs/heads/main", Commit: commit, RequestedAt: "1", Requests: "2",
		Lead: v1alpha1.LeadRecord{Transitions: 5}}
	in, err := parse(&v1alpha1.SyncTarget{Spec: good})
	require.NoError(t, err)
	assert.Equal(t, commit, in.Commit.String())
	assert.EqualValues(t, 5, in.Term)
	none := good
	none.Commit, none.Ref, none.RefName = "", "", ""
	in, err = parse(&v1alpha1.SyncTarget{Spec: none})
	require.NoError(t, err)
	assert.True(t, in.Commit.IsZero())
	paused := instruction{Target: sync.Target{Generation: 3}, paused: true, owner: "u"}
	owned := metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: v1alpha1.KindGatewaySync, UID: "u"}}}
	good.Paused = true
	for field, change := range map[string]func(*v1alpha1.SyncTargetSpec){
		"commit":      func(s *v1alpha1.SyncTargetSpec) { s.Commit = commit[1:] },
		"ref":         func(s *v1alpha1.SyncTargetSpec) { s.Ref = "-x" },
		"refName":     func(s *v1alpha1.SyncTargetSpec) { s.RefName = "refs/heads/../../x" },
		"requestedAt": func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = strings.Repeat("1", 65) },
	} {
		t.Run(field, func(t *testing.T) {
			bad := good
			change(&bad)
			in, err := parse(&v1alpha1.SyncTarget{ObjectMeta: owned, Spec: bad})
			assert.True(t, failure.Is(err, v1alpha1.ReasonWaitingForLead), "%s: %v", field, err)
			assert.ErrorContains(t, err, "spec."+field)
			assert.Equal(t, paused, in, "a pause is in force even in an invalid target")
		})
	}
	newer := good
	newer.Format = v1alpha1.TargetFormat + 1
	in, err = parse(&v1alpha1.SyncTarget{ObjectMeta: owned, Spec: newer})
	assert.True(t, failure.Is(err, v1alpha1.ReasonPodRestartNeeded), "%v", err)
	assert.Equal(t, paused, in)
}

func TestDownwardAPI(t *testing.T) {
	m, err := parsePodInfo("app=\"line\"\nexample.com/text=\"a\\nb=\\\"c\\\" \\u00e9\"\nempty=\"\"\n")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"app": "line", "example.com/text": "a\nb=\"c\" é", "empty": ""}, m)
	for _, bad := range []string{"app", "app=", "=\"x\"", "app=line", "app=\"x", "app=\"x\"y", "app=`x`", "app='x'", "app=\"\\q\""} {
		t.Run(bad, func(t *testing.T) {
			_, err := parsePodInfo(bad)
			assert.Error(t, err, bad)
		})
	}
}

// FuzzPodInfo checks that the agent reads back everything that the kubelet may write, and that no other input crashes it.
func FuzzPodInfo(f *testing.F) {
	f.Add("app.kubernetes.io/name", "line", "x=\"1\"\n")
	f.Add("stoker.io/exclude-patterns", "**/*.tmp,\n{a,b}\x00\xff", "\"=\"\n=\n")
	f.Fuzz(func(t *testing.T, key, value, raw string) {
		if m, err := parsePodInfo(raw); err == nil {
			var b strings.Builder
			for _, k := range slices.Sorted(maps.Keys(m)) {
				fmt.Fprintf(&b, "%s=%s\n", k, strconv.Quote(m[k]))
			}
			again, err := parsePodInfo(b.String())
			require.NoError(t, err)
			require.Equal(t, m, again)
		}
		if key == "" || strings.ContainsAny(key, "=\n") {
			return
		}
		m, err := parsePodInfo(fmt.Sprintf("%s=%q\n", key, value))
		require.NoError(t, err)
		require.Equal(t, map[string]string{key: value}, m)
	})
}

// FuzzSyncTarget checks that any object is either rejected with a reason, or yields a commit, refs that can be requested from
// git, and texts that fit into a report.
func FuzzSyncTarget(f *testing.F) {
	for _, s := range []string{
		`{"spec":{"format":1,"generation":1,"ref":"main","refName":"refs/heads/main","commit":"` + commit + `","requestedAt":"2026-01-01T00:00:00Z"}}`,
		`{"metadata":{"ownerReferences":[{"kind":"GatewaySync","uid":"u"}]},"spec":{"commit":"` + strings.ToUpper(commit) + `","lead":{"transitions":-1}}}`,
		`{"spec":{"generation":1,"revision":-7,"problem":{"generation":1,"reason":"AuthFailed","message":"` + strings.Repeat("é", 999) + `"}}}`,
		`{"spec":{"generation":1,"revision":9223372036854775807,"problem":{"reason":"Nonsense"}}}`,
		`{"spec":{"ref":"--upload-pack=sh","format":-2147483648,"generation":-1,"requests":"\u0000"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var target v1alpha1.SyncTarget
		if json.Unmarshal(raw, &target) != nil {
			return
		}
		in, err := parse(&target)
		if err != nil {
			r := failure.Reason(err, "")
			require.Contains(t, []v1alpha1.Reason{v1alpha1.ReasonWaitingForLead, v1alpha1.ReasonPodRestartNeeded}, r)
			return
		}
		require.LessOrEqual(t, target.Spec.Format, v1alpha1.TargetFormat)
		for _, ref := range []string{in.Ref, in.Name} {
			if ref != "" {
				_, err := repo.ParseRef(ref)
				require.NoError(t, err)
			}
		}
		fol := &Follower{Config: Config{Identity: Identity{Gateway: "g"}}, report: &reporter{}, reportTarget: &in}
		s := fol.composed(loop.State{Phase: v1alpha1.GatewayError, Problems: []loop.Problem{{Reason: v1alpha1.ReasonProfilesInvalid}}})
		require.LessOrEqual(t, encodedSize(&s), maxStatus)
		require.Equal(t, in.Generation, s.Generation)
		require.Equal(t, in.Revision, s.Revision)
		require.GreaterOrEqual(t, s.Revision, int64(0), "the API rejects a negative revision")
		require.LessOrEqual(t, len(in.problem.Message), maxMessage)
		if p, ok := in.unresolved(in.problem.generation); ok {
			require.Contains(t, []v1alpha1.Class{v1alpha1.ClassStalled, v1alpha1.ClassHeld}, p.Reason.Class())
		}
	})
}

// FuzzReport checks that no report exceeds its size limit or contains text that JSON cannot carry, whatever its paths, projects
// and messages.
func FuzzReport(f *testing.F) {
	f.Add("message", "projects/a/b", "main", 40)
	f.Add(strings.Repeat("<\x00\"é\u2028", 1000), strings.Repeat("\x01", 3000), strings.Repeat("&", 300), 1000)
	f.Add("\xff\xfe", "…", strings.Repeat("…", 100), 3)
	f.Fuzz(func(t *testing.T, message, path, ref string, n int) {
		s := worst(message, path, ref, min(max(n, 0), 1000))
		boundReport(&s)
		require.LessOrEqual(t, encodedSize(&s), maxStatus)
		require.LessOrEqual(t, encodedSize(s.Proposal), maxProposal)
		for _, text := range append([]string{s.Message, s.Ref, s.Scan, s.Gateway, s.Proposal.Branch, s.Proposal.URL, s.Proposal.Message}, append(s.Projects, s.Drift.Paths...)...) {
			require.True(t, utf8.ValidString(text))
		}
	})
}

// worst returns a report with these texts in the fields that have text, large numbers, and n items in each list.
func worst(message, path, ref string, n int) v1alpha1.SyncReportStatus {
	return v1alpha1.SyncReportStatus{
		Format: 1, Gateway: message, Profile: message, Phase: v1alpha1.GatewayError, Reason: v1alpha1.Reason(message), Message: message, Ref: ref,
		Commit: plan.ID{1}.String(), Target: plan.ID{2}.String(), HandledRequest: ref, HandledForceSync: message, Duration: message, Scan: message,
		Projects: slices.Repeat([]string{path}, n), Drift: v1alpha1.DriftFiles{Files: 1 << 30, Paths: slices.Repeat([]string{path}, n)},
		Files: v1alpha1.FileCounts{Added: 1 << 30, Modified: 1 << 30, Deleted: 1 << 30, Kept: 1 << 30, Saved: 1 << 30}, Generation: 1 << 60, Term: 1 << 30,
		Proposal: &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, Branch: ref, Commit: plan.ID{3}.String(), Number: 1 << 60, URL: path, Files: 1 << 30, Refused: 1 << 30,
			Reason: v1alpha1.Reason(message), Message: message},
		GatewayDetails: v1alpha1.GatewayDetails{AgentVersion: message, Notes: slices.Repeat([]string{path}, n),
			SyncHistory: syncHistory(slices.Repeat([]audit.Entry{{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Target: plan.ID{4}, Ref: ref, Duration: message,
				Files: audit.Files{Added: 1 << 30, Deleted: 1 << 40}, Projects: n, Reason: v1alpha1.Reason(message), Snapshot: path}}, n))},
	}
}

func TestReportWithinTheLimit(t *testing.T) {
	s := worst("short", "projects/a", "main", 3)
	before := *s.DeepCopy()
	boundReport(&s)
	assert.Equal(t, before, s, "a report within the limit is unchanged")
}

func TestGatewayAddress(t *testing.T) {
	port := int32(9088)
	for name, c := range map[string]struct {
		spec v1alpha1.GatewaySpec
		port int32
		tls  bool
		want string
	}{
		"default":                     {v1alpha1.GatewaySpec{}, 0, false, "http://127.0.0.1:8088"},
		"pod with port and TLS":       {v1alpha1.GatewaySpec{}, 8043, true, "https://127.0.0.1:8043"},
		"spec with port":              {v1alpha1.GatewaySpec{Port: &port}, 8043, true, "http://127.0.0.1:9088"},
		"spec with port and TLS":      {v1alpha1.GatewaySpec{Port: &port, TLS: true}, 8043, false, "https://127.0.0.1:9088"},
		"spec with TLS, without port": {v1alpha1.GatewaySpec{TLS: true}, 0, false, "https://127.0.0.1:8088"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, gatewayURL(&c.spec, c.port, c.tls))
		})
	}
}

// stranger creates a commit that only a pull request contains, and returns its id.
func (w *world) stranger(title string) string {
	w.t.Helper()
	head := w.repo.Head()
	commit := w.commit(title)
	w.repo.Git("update-ref", "refs/pull/1/head", commit)
	w.repo.Git("update-ref", "refs/heads/main", head)
	return commit
}

// C14: any token of the namespace can write the SyncTarget. The agent runs only what the spec, requests and git confirm.
func TestFollowerRefusesTarget(t *testing.T) {
	for name, c := range map[string]struct {
		request string                                           // requested-ref: "commit" stands for the id of the target, "first" for the first commit
		target  func(s *v1alpha1.SyncTargetSpec, strange string) // changes beside the commit
		reason  v1alpha1.Reason                                  // reported reason; "" if the agent only logs
		says    string
	}{
		"a commit that the ref does not have": {reason: v1alpha1.ReasonRefNotAllowed, says: "is not in the history of refs/heads/main",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.RefName = "refs/pull/1/head" }},
		"a ref that is not requested": {says: "neither spec.git.ref nor a request",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.Ref = "refs/pull/1/head" }},
		"a commit that is not requested": {says: "neither spec.git.ref nor a request",
			target: func(s *v1alpha1.SyncTargetSpec, strange string) { s.Ref, s.RefName = strange, "" }},
		"a requested ref that is not allowed": {request: "refs/pull/1/head", reason: v1alpha1.ReasonRefNotAllowed, says: "allowedRefs of the spec admits v*",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.Ref = "refs/pull/1/head" }},
		"a requested commit that is not allowed": {request: "commit", reason: v1alpha1.ReasonRefNotAllowed, says: "allowedRefs of the spec admits v*",
			target: func(s *v1alpha1.SyncTargetSpec, strange string) { s.Ref, s.RefName = strange, "" }},
		"a commit other than the requested one": {request: "first", reason: v1alpha1.ReasonRefNotAllowed, says: "the SyncTarget says commit",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.RefName = "" }},
		"other requests than those of the annotations": {says: "made from other requests",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.Requests = strings.Repeat("0", 64) }},
		"no requests": {says: "made from other requests",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.Requests = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.pod("line-0")
			first := w.commit("one")
			w.repo.Git("tag", "v1", first)
			w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.AllowedRefs = []string{"v*"} })
			w.lead(targetCommit(first))
			p.start()
			p.awaitSynced(first, "one")
			strange := w.stranger("stranger")
			request := map[string]string{"commit": strange, "first": first}[c.request]
			if request == "" {
				request = c.request
			}
			w.annotate(v1alpha1.AnnotationRequestedRef, request)
			w.lead(targetCommit(strange), func(s *v1alpha1.SyncTargetSpec) {
				if c.request == "first" {
					s.Ref = first
				}
				c.target(s, strange)
			})
			if c.reason != "" {
				s := p.await("refused", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == c.reason })
				assert.Contains(t, s.Message, c.says)
			}
			eventually(t, "the agent logs the rejection", func() bool { return strings.Contains(p.agent.log.String(), c.says) })
			assert.Equal(t, "one", p.title())
			assert.Equal(t, first, p.report().Status.Commit)
			second := w.commit("two")
			w.annotate(v1alpha1.AnnotationRequestedRef, "")
			w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) {
				s.Ref, s.RefName = "main", "refs/heads/main"
			})
			p.awaitSynced(second, "two")
		})
	}
}

// C14: the agent runs a target that the spec or a request confirms, also a commit that its branch has passed.
// It does not read a confirmed spec again.
func TestFollowerAdmitsTarget(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.AllowedRefs = []string{"v*"} })
	second := w.commit("two")
	third := w.commit("three")
	w.repo.Git("tag", "v3", third)
	w.lead(targetCommit(second))
	p.start()
	p.awaitSynced(second, "two")

	w.annotate(v1alpha1.AnnotationRequestedRef, "v3")
	w.lead(targetCommit(third), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "v3", "refs/tags/v3" })
	p.awaitSynced(third, "three")

	w.annotate(v1alpha1.AnnotationRequestedRef, first)
	w.lead(targetCommit(first), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = first, "" })
	p.awaitSynced(first, "one")

	read := p.agent.traffic.count("GET gatewaysyncs")
	asked := w.git.Stats().Requests
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "again" })
	p.await("the echo", func(s v1alpha1.SyncReportStatus) bool { return s.HandledRequest == "again" })
	assert.Equal(t, read, p.agent.traffic.count("GET gatewaysyncs"), "the agent does not read the spec again")
	assert.Equal(t, asked, w.git.Stats().Requests)
}

// C14: templates can use the ref, so the agent follows no other ref to the commit on the disk either.
func TestForgedRefOfCommitOnDisk(t *testing.T) {
	w, p, first := synced(t)
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Ref = "refs/pull/1/head" })
	eventually(t, "the agent logs the rejection", func() bool { return strings.Contains(p.agent.log.String(), "neither spec.git.ref nor a request") })
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Ref = "" })
	s := p.await("an invalid target", func(s v1alpha1.SyncReportStatus) bool {
		return strings.Contains(s.Message, "spec.ref: the commit has none")
	})
	assert.Equal(t, "main", s.Ref)
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Ref = "main" })
	p.awaitSynced(first, "one")
}

// C14, F16: the agent does not run a tag that moved since it was chosen, whatever the target says.
func TestRequestedCommit(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	chosen := w.commit("chosen")
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	moved := w.commit("moved")
	w.repo.Git("tag", "v2", moved)
	w.annotate(v1alpha1.AnnotationRequestedRef, "v2")
	w.annotate(v1alpha1.AnnotationRequestedCommit, chosen)
	w.lead(targetCommit(moved), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "v2", "refs/tags/v2" })
	eventually(t, "the agent logs the rejection", func() bool { return strings.Contains(p.agent.log.String(), "which is requested at "+chosen) })
	assert.Equal(t, "one", p.title())

	w.repo.Git("tag", "--force", "v2", chosen)
	w.lead(targetCommit(chosen))
	p.awaitSynced(chosen, "chosen")
	w.lead(targetCommit(moved))
	eventually(t, "the agent logs the second rejection", func() bool { return strings.Count(p.agent.log.String(), "SyncTarget not followed") == 2 })
	assert.Equal(t, "chosen", p.title())
}

// A rejected request leaves the gateways at their commit, even if their agents restart.
func TestRefusedRequestKeepsEarlierOne(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	w.commit("one")
	second := w.commit("two")
	w.repo.Git("tag", "v2", second)
	w.commit("three")
	gs := w.gatewaySync(p)
	w.annotate(v1alpha1.AnnotationRequestedRef, "v2")
	w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "v2", "refs/tags/v2" })
	a := p.start()
	p.awaitSynced(second, "two")

	w.annotate(v1alpha1.AnnotationRequestedRef, "v3")
	w.lead(problemOf(gs.Generation, v1alpha1.ReasonRefMoved, "v3 has moved"))
	a.end()
	p.start()
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "again" })
	s := p.await("the echo", func(s v1alpha1.SyncReportStatus) bool { return s.HandledRequest == "again" })
	assert.Equal(t, v1alpha1.GatewaySynced, s.Phase, s.Message)

	// A pod that never ran v2 may not run it now, and reports what an operator must do.
	fresh := w.pod("line-1")
	fresh.start()
	s = fresh.await("the agent waits for an operator", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonRefMoved })
	assert.Equal(t, "v3 has moved", s.Message)
}

// The git server that a follower reaches may lag behind the one that the lead polled. This is not a failure.
func TestLaggingGitServer(t *testing.T) {
	w, p, _ := synced(t)
	second := w.commit("two")
	w.annotate(v1alpha1.AnnotationRequestedRef, "v2")
	w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "v2", "refs/tags/v2" })
	s := p.await("the agent waits for the lead", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForLead })
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)
	assert.Contains(t, s.Message, "retrying")
	w.repo.Git("tag", "v2", second)
	p.awaitSynced(second, "two")
	assert.NotContains(t, p.agent.log.String(), "reason=RefNotFound")
}
