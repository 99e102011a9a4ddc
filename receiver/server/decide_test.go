package server

import (
	"slices"
	"testing"

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

func requested(ref, unless string) func(*v1alpha1.GatewaySync) {
	return func(gs *v1alpha1.GatewaySync) {
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: ref, v1alpha1.AnnotationRequestedOver: desiredref.RequestOver(ref, gs.Spec.Git.Ref, "")}
		if unless != "" {
			gs.Annotations[v1alpha1.AnnotationRequestedUnless] = unless
		}
	}
}

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

// The result of a push is "" for no effect, "hint" for a poll of git, or the requested ref.
func TestPushRequests(t *testing.T) {
	for _, c := range []struct {
		name string
		gs   *v1alpha1.GatewaySync
		refs []string
		want string
	}{
		{"its branch", follows("main"), []string{"refs/heads/main"}, "hint"},
		{"full ref of its branch", follows("refs/heads/main"), []string{"refs/heads/main"}, "hint"},
		{"one of several", follows("main"), []string{"refs/heads/dev", "refs/heads/main"}, "hint"},
		{"another branch", follows("main"), []string{"refs/heads/dev"}, ""},
		{"branch with a common prefix", follows("main"), []string{"refs/heads/main2", "refs/heads/x/main"}, ""},
		{"full tag ref of that name", follows("refs/tags/main"), []string{"refs/heads/main"}, ""},
		{"a commit never moves", follows(commit), []string{"refs/heads/" + commit, "refs/heads/main"}, ""},
		{"HEAD may be any branch", follows("HEAD"), []string{"refs/heads/main"}, "hint"},
		{"requested branch", follows("main", requested("dev", "")), []string{"refs/heads/dev"}, "hint"},
		{"branch of the spec during a request", follows("main", requested("dev", "")), []string{"refs/heads/main"}, ""},
		{"a rollback ends when the branch moves on", follows("main", requested(commit, other)), []string{"refs/heads/main"}, "hint"},
		{"invalid requested ref", follows("main", requested("a..b", "")), []string{"refs/heads/main"}, "hint"},

		{"the first tag", follows("main"), []string{"refs/tags/v1.0.0"}, "v1.0.0"},
		{"the highest of several", follows("main"), []string{"refs/tags/v1.9.0", "refs/tags/v1.10.0", "refs/tags/v1.2.0", "refs/heads/x"}, "v1.10.0"},
		{"a higher one", follows("v1.9.0"), []string{"refs/tags/v1.10.0"}, "v1.10.0"},
		{"a lower one", follows("v1.10.0"), []string{"refs/tags/v1.9.0"}, ""},
		{"a lower one than the tag written whole", follows("refs/tags/v1.10.0"), []string{"refs/tags/v1.9.0"}, ""},
		{"a lower one that is allowed", follows("v1.10.0", downgrades), []string{"refs/tags/v1.9.0"}, "v1.9.0"},
		{"a pre-release of the current one", follows("v2.0.0"), []string{"refs/tags/v2.0.0-rc.1"}, ""},
		{"the release of the current pre-release", follows("v2.0.0-rc.1"), []string{"refs/tags/v2.0.0"}, "v2.0.0"},
		{"the current one moved", follows("v2.0.0"), []string{"refs/tags/v2.0.0"}, "hint"},
		{"a lower one than has run before a rollback", follows("main", requested(commit, other), ran("v1.2.0", "main", "v1.10.0")), []string{"refs/tags/v1.9.0"}, ""},
		{"a higher one than has run", follows("main", ran("v1.2.0", commit)), []string{"refs/tags/v1.9.0"}, "v1.9.0"},
		{"rolled-back tag pushed again", follows("main", requested(commit, ""), ran("v1.0.0", "v2.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"earlier tag while following a branch", follows("main", ran("v2.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"rollback from a tag that never ran", follows("main", requested(commit, ""), ran("v1.0.0"), followed("v1.0.0 v2.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"lower than the rolled-back tag", follows("main", requested(commit, ""), ran("v1.0.0"), followed("v1.0.0 v2.0.0")), []string{"refs/tags/v1.9.0"}, ""},
		{"fixed tag after a rollback", follows("main", requested(commit, ""), ran("v1.0.0"), followed("v1.0.0 v2.0.0")), []string{"refs/tags/v2.0.0", "refs/tags/v2.0.1"}, "v2.0.1"},
		{"rolled-back tag after rollback to version", follows("main", requested("v1.0.0", ""), ran("v2.0.0", "v1.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"full ref after rollback to version", follows("main", requested("refs/tags/v1.0.0", ""), ran("refs/tags/v2.0.0")), []string{"refs/tags/v2.0.0"}, ""},
		{"higher than the rollback target", follows("main", requested("v1.0.0", ""), ran("v2.0.0", "v1.0.0")), []string{"refs/tags/v1.0.1"}, "v1.0.1"},
		{"rolled-back tag with downgrades allowed", follows("main", requested(commit, ""), followed("v2.0.0"), downgrades), []string{"refs/tags/v2.0.0"}, "v2.0.0"},
		{"the followed one moved", follows("main", requested("v2.0.0", ""), followed("v2.0.0")), []string{"refs/tags/v2.0.0"}, "hint"},
		{"version of the same prefix", follows("line/v1.9.0"), []string{"refs/tags/line/v1.10.0"}, "line/v1.10.0"},
		{"version of another prefix", follows("other/v9.0.0"), []string{"refs/tags/line/v1.0.0"}, "line/v1.0.0"},
		{"lower version of the same prefix", follows("main", ran("line/v2", "v9")), []string{"refs/tags/line/v1.9.9"}, ""},
		{"a version by the calendar", follows("2026.09.1"), []string{"refs/tags/2026.10.1"}, "2026.10.1"},
		{"an older one by the calendar", follows("2026.10.1"), []string{"refs/tags/2026.09.30"}, ""},
		{"no version", follows("main"), []string{"refs/tags/nightly"}, ""},
		{"no version, and it is allowed", follows("main", downgrades), []string{"refs/tags/nightly"}, "nightly"},
		{"a tag that is not followed", follows("main"), []string{"refs/tags/x1.0"}, ""},
		{"tag named like a commit", follows("main", downgrades), []string{"refs/tags/" + commit}, ""},
		{"tag named like a branch", follows("main", downgrades), []string{"refs/tags/refs/heads/main"}, ""},
		{"tag named HEAD", follows("main", downgrades), []string{"refs/tags/HEAD"}, ""},
		{"a tag, and the branch", follows("main"), []string{"refs/heads/main", "refs/tags/v1.0.0"}, "v1.0.0"},
		{"a lower tag, and the branch", follows("main", ran("v2.0.0")), []string{"refs/heads/main", "refs/tags/v1.0.0"}, "hint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := sender.Request{Sender: "github", Kind: sender.Move, ID: "d", Repositories: []sender.Repository{{Address: "https://git.example.com/acme/plant"}}, Refs: c.refs}
			for _, own := range []bool{true, false} {
				ask, why, err := decide(c.gs, r, own)
				require.NoError(t, err)
				got, want := "", c.want
				if why == "" {
					got = ask.Ref
					if got == "" {
						got = "hint"
					}
					assert.Equal(t, request.Request{Ref: ask.Ref, By: "github", ID: "d", Follows: ask.Ref != ""}, ask)
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
			}
			r.Repositories[0].Address = "https://git.example.com/acme/else"
			_, why, err := decide(c.gs, r, true)
			require.NoError(t, err)
			assert.NotEmpty(t, why, "of another repository")
		})
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
