package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
)

const other = "2222222222222222222222222222222222222222"

// follows returns a GatewaySync with a ref in its spec that follows tags.
func follows(ref string, change ...func(*v1alpha1.GatewaySync)) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "git@git.example.com:acme/plant.git", ref
	gs.Spec.Webhook.FollowTags = []string{"v*", "line/**", "2*", "refs/**", "HEAD", "nightly", commit}
	for _, c := range change {
		c(gs)
	}
	return gs
}

// requested sets a request for a ref, with a condition unless it is "".
func requested(ref, unless string) func(*v1alpha1.GatewaySync) {
	return func(gs *v1alpha1.GatewaySync) {
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: ref, v1alpha1.AnnotationRequestedOver: desiredref.RequestOver(ref, gs.Spec.Git.Ref, "")}
		if unless != "" {
			gs.Annotations[v1alpha1.AnnotationRequestedUnless] = unless
		}
	}
}

// ran sets the history of refs that all gateways ran.
func ran(refs ...string) func(*v1alpha1.GatewaySync) {
	return func(gs *v1alpha1.GatewaySync) {
		for _, ref := range refs {
			gs.Status.History = append(gs.Status.History, v1alpha1.CommitRecord{Ref: ref, Commit: commit})
		}
	}
}

// followed sets the tags that were followed before.
func followed(tags string) func(*v1alpha1.GatewaySync) {
	return func(gs *v1alpha1.GatewaySync) {
		if gs.Annotations == nil {
			gs.Annotations = map[string]string{}
		}
		gs.Annotations[v1alpha1.AnnotationRequestedTags] = tags
	}
}

func downgrades(gs *v1alpha1.GatewaySync) { gs.Spec.Webhook.AllowDowngrade = true }

func prereleases(gs *v1alpha1.GatewaySync) {
	gs.Spec.Webhook.FollowTags = append(gs.Spec.Webhook.FollowTags, "v*-rc*")
}

// GitHub publishes a prerelease, and later the same release as a final one.
func TestReleaseMarkedAsPrerelease(t *testing.T) {
	r := sender.Request{Sender: "github", Kind: sender.KindPush, Repositories: []sender.Repository{{Address: "https://git.example.com/acme/plant"}}, Refs: []string{"refs/tags/v2.0.0"}}
	for prerelease, want := range map[bool]string{true: "", false: "v2.0.0"} {
		t.Run(fmt.Sprint(prerelease), func(t *testing.T) {
			r.Prerelease = prerelease
			ask, why, err := decide(follows("main"), r, true)
			require.NoError(t, err)
			assert.Equal(t, want, ask.Ref)
			assert.Equal(t, prerelease, strings.Contains(why, "is a prerelease"))
		})
	}
}

// The result of a push is "" for no effect, "hint" for a poll of git, or the requested ref.
func TestPushRequests(t *testing.T) {
	for _, c := range []struct {
		name string
		gs   *v1alpha1.GatewaySync
		refs []string
		want string
	}{
		{"desired branch", follows("main"), []string{"refs/heads/main"}, "hint"},
		{"full ref of the desired branch", follows("refs/heads/main"), []string{"refs/heads/main"}, "hint"},
		{"desired branch among several", follows("main"), []string{"refs/heads/dev", "refs/heads/main"}, "hint"},
		{"another branch", follows("main"), []string{"refs/heads/dev"}, ""},
		{"branch with a common prefix", follows("main"), []string{"refs/heads/main2", "refs/heads/x/main"}, ""},
		{"tag with the name of the branch", follows("refs/tags/main"), []string{"refs/heads/main"}, ""},
		{"desired commit", follows(commit), []string{"refs/heads/" + commit, "refs/heads/main"}, ""},
		{"desired ref HEAD", follows("HEAD"), []string{"refs/heads/main"}, "hint"},
		{"requested branch", follows("main", requested("dev", "")), []string{"refs/heads/dev"}, "hint"},
		{"branch of the spec during a request", follows("main", requested("dev", "")), []string{"refs/heads/main"}, ""},
		{"branch during a rollback", follows("main", requested(commit, other)), []string{"refs/heads/main"}, "hint"},
		{"invalid requested ref", follows("main", requested("a..b", "")), []string{"refs/heads/main"}, "hint"},

		{"first tag", follows("main"), []string{"refs/tags/v1.0.0"}, "v1.0.0"},
		{"highest of several tags", follows("main"), []string{"refs/tags/v1.9.0", "refs/tags/v1.10.0", "refs/tags/v1.2.0", "refs/heads/x"}, "v1.10.0"},
		{"higher tag", follows("v1.9.0"), []string{"refs/tags/v1.10.0"}, "v1.10.0"},
		{"lower tag", follows("v1.10.0"), []string{"refs/tags/v1.9.0"}, ""},
		{"lower tag than the full ref of the current one", follows("refs/tags/v1.10.0"), []string{"refs/tags/v1.9.0"}, ""},
		{"lower tag, downgrades allowed", follows("v1.10.0", downgrades), []string{"refs/tags/v1.9.0"}, "v1.9.0"},
		{"pre-release of the current version", follows("v2.0.0"), []string{"refs/tags/v2.0.0-rc.1"}, ""},
		{"release of the current pre-release", follows("v2.0.0-rc.1"), []string{"refs/tags/v2.0.0"}, "v2.0.0"},
		{"prerelease", follows("main"), []string{"refs/tags/v2.0.0-rc.1"}, ""},
		{"prerelease, downgrades allowed", follows("main", downgrades), []string{"refs/tags/v2.0.0-rc.1"}, ""},
		{"prerelease and a lower version", follows("main"), []string{"refs/tags/v2.0.0-rc.1", "refs/tags/v1.0.0"}, "v1.0.0"},
		{"prerelease that a pattern asks for", follows("main", prereleases), []string{"refs/tags/v2.0.0-rc.1", "refs/tags/v2.0.0-beta"}, "v2.0.0-rc.1"},
		{"prerelease of another kind", follows("main", prereleases), []string{"refs/tags/v2.0.0-beta"}, ""},
		{"current tag moved", follows("v2.0.0"), []string{"refs/tags/v2.0.0"}, "hint"},
		{"lower tag than before a rollback", follows("main", requested(commit, other), ran("v1.2.0", "main", "v1.10.0")), []string{"refs/tags/v1.9.0"}, ""},
		{"higher tag than before a rollback", follows("main", ran("v1.2.0", commit)), []string{"refs/tags/v1.9.0"}, "v1.9.0"},
		{"rolled-back tag pushed again", follows("main", requested(commit, ""), ran("v1.0.0", "v2.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"earlier tag while following a branch", follows("main", ran("v2.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"rollback from a tag that never ran", follows("main", requested(commit, ""), ran("v1.0.0"), followed("v1.0.0 v2.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"lower than the rolled-back tag", follows("main", requested(commit, ""), ran("v1.0.0"), followed("v1.0.0 v2.0.0")), []string{"refs/tags/v1.9.0"}, ""},
		{"fixed tag after a rollback", follows("main", requested(commit, ""), ran("v1.0.0"), followed("v1.0.0 v2.0.0")), []string{"refs/tags/v2.0.0", "refs/tags/v2.0.1"}, "v2.0.1"},
		{"rolled-back tag after rollback to version", follows("main", requested("v1.0.0", ""), ran("v2.0.0", "v1.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"full ref after rollback to version", follows("main", requested("refs/tags/v1.0.0", ""), ran("refs/tags/v2.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"higher than the rollback target", follows("main", requested("v1.0.0", ""), ran("v2.0.0", "v1.0.0")), []string{"refs/tags/v1.0.1"}, "v1.0.1"},
		{"rolled-back tag with downgrades allowed", follows("main", requested(commit, ""), followed("v2.0.0"), downgrades), []string{"refs/tags/v2.0.0"}, "v2.0.0"},
		{"followed tag moved", follows("main", requested("v2.0.0", ""), followed("v2.0.0")), []string{"refs/tags/v2.0.0"}, "hint"},
		{"higher version with the same prefix", follows("line/v1.9.0"), []string{"refs/tags/line/v1.10.0"}, "line/v1.10.0"},
		{"version with another prefix", follows("other/v9.0.0"), []string{"refs/tags/line/v1.0.0"}, "line/v1.0.0"},
		{"lower version with the same prefix", follows("main", ran("line/v2", "v9")), []string{"refs/tags/line/v1.9.9"}, ""},
		{"calendar version", follows("2026.09.1"), []string{"refs/tags/2026.10.1"}, "2026.10.1"},
		{"older calendar version", follows("2026.10.1"), []string{"refs/tags/2026.09.30"}, ""},
		{"tag without version", follows("main"), []string{"refs/tags/nightly"}, ""},
		{"tag without version, downgrades allowed", follows("main", downgrades), []string{"refs/tags/nightly"}, "nightly"},
		{"tag that no pattern matches", follows("main"), []string{"refs/tags/x1.0"}, ""},
		{"tag named like a commit", follows("main", downgrades), []string{"refs/tags/" + commit}, ""},
		{"tag named like a branch", follows("main", downgrades), []string{"refs/tags/refs/heads/main"}, ""},
		{"tag named HEAD", follows("main", downgrades), []string{"refs/tags/HEAD"}, ""},
		{"higher tag and desired branch", follows("main"), []string{"refs/heads/main", "refs/tags/v1.0.0"}, "v1.0.0"},
		{"lower tag and desired branch", follows("main", ran("v2.0.0")), []string{"refs/heads/main", "refs/tags/v1.0.0"}, "hint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := sender.Request{Sender: "github", Kind: sender.KindPush, ID: "d", Repositories: []sender.Repository{{Address: "https://git.example.com/acme/plant"}}, Refs: c.refs}
			for _, own := range []bool{true, false} {
				t.Run(fmt.Sprintf("own secret %t", own), func(t *testing.T) {
					ask, why, err := decide(c.gs, r, own)
					require.NoError(t, err)
					got, want := "", c.want
					if why == "" {
						got = ask.Ref
						if got == "" {
							got = "hint"
						}
						id := ""
						if own {
							id = "d"
						}
						assert.Equal(t, request.Request{Ref: ask.Ref, By: "github", ID: id, Follows: ask.Ref != ""}, ask)
						require.NoError(t, ask.Check())
					}
					if !own && want != "hint" { // a secret of the installation may only hint at the branch in the same push
						require.Empty(t, ask.Ref)
						want = ""
						if got == "hint" {
							want = "hint"
							require.True(t, slices.ContainsFunc(c.refs, func(ref string) bool { return mayBeDesired(c.gs, ref) }))
						}
					}
					assert.Equal(t, want, got, "%s (own: %t): %s", c.name, own, why)
				})
			}
			r.Repositories[0].Address = "https://git.example.com/acme/else"
			_, why, err := decide(c.gs, r, true)
			require.NoError(t, err)
			assert.NotEmpty(t, why, "a push to another repository must have no effect")
		})
	}
}

// R4: a sender with an install-wide secret cannot make the promotions of others look older than its own.
func TestInstallSecretRecordsNoID(t *testing.T) {
	r := sender.Request{Sender: sender.Kargo, Kind: sender.KindRequest, ID: "x.01k0000000000000000000000a.y"}
	for own, id := range map[bool]string{true: r.ID, false: ""} {
		ask, why, err := decide(follows("main"), r, own)
		require.NoError(t, err)
		assert.Empty(t, why)
		assert.Equal(t, id, ask.ID, "own: %t", own)
	}
}

// R2: the alternatives of a pattern multiply, so a valid one with many of them would match forever. It admits no tag.
func TestPatternWithManyAlternatives(t *testing.T) {
	gs := follows("main", func(gs *v1alpha1.GatewaySync) { gs.Spec.Webhook.FollowTags = []string{strings.Repeat("{a,a}", 51)} })
	r := sender.Request{Sender: "github", Kind: sender.KindPush, Refs: []string{tags + strings.Repeat("a", 52)}, Repositories: []sender.Repository{{Address: gs.Spec.Git.Repo}}}
	done := make(chan string, 1)
	go func() {
		_, why, _ := decide(gs, r, true)
		done <- why
	}()
	select {
	case why := <-done:
		assert.Contains(t, why, "followTags does not match")
	case <-time.After(time.Minute):
		t.Fatal("the match did not end")
	}
}

func TestVersionsInTags(t *testing.T) {
	for tag, want := range map[string]string{
		"v1.2.3": "1.2.3", "V1": "1.0.0", "1.2": "1.2.0", "line/v1.2.3": "1.2.3", "line-1.2.3": "1.2.3", "gw-2-v1.0.0": "1.0.0", "line_v3": "3.0.0",
		"release-2024.11": "2024.11.0", "v1.0.0-v2": "1.0.0-v2", "v1.0.0+a": "1.0.0+a", "a/b/v2": "2.0.0",
		"nightly": "", "v": "", "": "", "version1": "", "1.2.3.4": "", "vv1": "", "-": "",
	} {
		t.Run(tag, func(t *testing.T) {
			_, v := version(tag)
			got := ""
			if v != nil {
				got = v.String()
			}
			assert.Equal(t, want, got)
		})
	}
}
