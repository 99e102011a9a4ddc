package wire

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

const branch = "refs/heads/gateway-changes/plant/site-a"

// pusher is a repository that accepts pushes, with the commits of a client that the repository lacks.
type pusher struct {
	*gitserver.Repo
	t      testing.TB
	client *testClient
	web    *gitserver.Server // nil over ssh

	first, second, third plan.ID         // only the first is on the server
	mine                 *gitserver.Repo // the client's, with all three commits
}

// pushers runs a test over http and over ssh.
func pushers(t *testing.T, test func(t *testing.T, p *pusher)) {
	t.Helper()
	t.Run("http", func(t *testing.T) { test(t, newPusher(t)) })
	t.Run("ssh", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{Pushes: true})
		test(t, fillPusher(t, &pusher{Repo: g.Repo.Repo, client: g.client()}))
	})
}

func newPusher(t testing.TB) *pusher {
	t.Helper()
	g := newSiteWith(t, gitserver.Options{Pushes: true, Auth: gitserver.Token(tripwire)})
	c := newClient(t, g.url(), Auth{Token: repotest.Token(tripwire)}, Options{})
	return fillPusher(t, &pusher{Repo: g.Repo.Repo, client: c, web: g.Server})
}

func fillPusher(t testing.TB, p *pusher) *pusher {
	t.Helper()
	p.t, p.mine = t, gitserver.NewRepo(t, filepath.Join(t.TempDir(), "mine.git"))
	p.first = repotest.ParseID(t, p.Commit("first", repotest.Views(3)))
	require.Equal(t, p.first.String(), p.mine.Commit("first", repotest.Views(3)))
	p.second = repotest.ParseID(t, p.mine.Commit("second", repotest.EditView(1, 1)))
	p.third = repotest.ParseID(t, p.mine.Commit("third", repotest.EditView(1, 2)))
	return p
}

// pack returns the objects of a commit that another one does not have.
func (p *pusher) pack(commit, without plan.ID) [][]byte {
	p.t.Helper()
	pack := repotest.RunGit(p.t, p.mine.Dir, []byte(commit.String()+"\n^"+without.String()+"\n"), "pack-objects", "--revs", "--stdout", "-q")
	return [][]byte{pack[:10], pack[10:]}
}

// create pushes the second commit to a new branch.
func (p *pusher) create() error {
	p.t.Helper()
	return p.client.Push(p.t.Context(), branch, plan.ID{}, p.second, p.pack(p.second, p.first))
}

func (p *pusher) tip() string {
	p.t.Helper()
	return p.Git("for-each-ref", "--format=%(objectname)", branch)
}

// restore ends all faults and requests, and deletes the branch.
func (p *pusher) restore(t testing.TB) {
	t.Helper()
	p.web.Heal()
	require.Eventually(t, func() bool { return p.web.InFlight() == 0 }, time.Minute, time.Millisecond)
	p.Git("update-ref", "-d", branch)
}

// hook writes a hook of the server.
func (p *pusher) hook(name, script string) {
	p.t.Helper()
	dir := filepath.Join(p.Dir, "hooks")
	require.NoError(p.t, os.MkdirAll(dir, 0o755))
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
}

func TestPush(t *testing.T) {
	pushers(t, func(t *testing.T, p *pusher) {
		require.NoError(t, p.create())
		assert.Equal(t, p.second.String(), p.tip())
		refs, err := p.client.PushRefs(t.Context())
		require.NoError(t, err)
		assert.Equal(t, map[string]plan.ID{"refs/heads/main": p.first, branch: p.second}, refs.ByName)

		require.NoError(t, p.client.Push(t.Context(), branch, p.second, p.third, p.pack(p.third, p.second)))
		assert.Equal(t, p.third.String(), p.tip())
		p.Git("fsck", "--strict")

		require.NoError(t, p.client.Push(t.Context(), branch, p.second, p.third, nil), "a repeated push succeeds")
		require.NoError(t, p.client.Push(t.Context(), "refs/heads/again", plan.ID{}, p.third, nil), "the server has every object")
		assert.Equal(t, p.third.String(), p.Git("rev-parse", "refs/heads/again"))

		require.NoError(t, p.client.Push(t.Context(), branch, p.third, plan.ID{}, nil))
		assert.Empty(t, p.tip())
		require.NoError(t, p.client.Push(t.Context(), branch, p.third, plan.ID{}, nil), "a repeated deletion succeeds")
	})
}

func TestPushToEmptyRepository(t *testing.T) {
	pushers(t, func(t *testing.T, p *pusher) {
		p.DeleteBranch("main")
		refs, err := p.client.PushRefs(t.Context())
		require.NoError(t, err)
		assert.Empty(t, refs.ByName)
		pack := repotest.RunGit(t, p.mine.Dir, []byte(p.third.String()+"\n"), "pack-objects", "--revs", "--stdout", "-q")
		require.NoError(t, p.client.Push(t.Context(), branch, plan.ID{}, p.third, [][]byte{pack}))
		p.Git("fsck", "--strict")
	})
}

func TestDeclinedPush(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(p *pusher)
		push    func(p *pusher) error
		says    string
	}{
		"pre-receive hook": {
			func(p *pusher) { p.hook("pre-receive", `printf 'found a secret: see the \033[31mpolicy'; exit 1`) }, (*pusher).create,
			`pre-receive hook declined; found a secret: see the \x1b[31mpolicy`,
		},
		"protected branch": {func(p *pusher) { p.hook("update", "exit 1") }, (*pusher).create, "hook declined"},
		"not a fast-forward": {
			func(p *pusher) {
				require.NoError(p.t, p.create())
				p.Git("config", "receive.denyNonFastForwards", "true")
			},
			func(p *pusher) error { return p.client.Push(p.t.Context(), branch, p.second, p.first, nil) },
			"non-fast-forward",
		},
		"deletion": {
			func(p *pusher) {
				require.NoError(p.t, p.create())
				p.Git("config", "receive.denyDeletes", "true")
			},
			func(p *pusher) error { return p.client.Push(p.t.Context(), branch, p.second, plan.ID{}, nil) },
			"deletion prohibited",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pushers(t, func(t *testing.T, p *pusher) {
				tt.prepare(p)
				before := p.tip()
				err := tt.push(p)
				repotest.RequireReason(t, v1alpha1.ReasonPushRejected, err)
				require.ErrorContains(t, err, tt.says)
				assert.False(t, IsStale(err))
				assert.Equal(t, before, p.tip())
			})
		})
	}
	t.Run("the text of the server is bounded and redacted", func(t *testing.T) {
		p := newPusher(t)
		p.hook("pre-receive", `echo `+tripwire+`; head -c 300000 /dev/zero | tr '\0' x; exit 1`)
		err := p.create()
		repotest.RequireReason(t, v1alpha1.ReasonPushRejected, err)
		assert.Less(t, len(err.Error()), 600)
	})
}

func TestStalePush(t *testing.T) {
	pushers(t, func(t *testing.T, p *pusher) {
		require.NoError(t, p.create())
		pack := p.pack(p.third, p.first)
		stale := func(old plan.ID) {
			t.Helper()
			before := p.tip()
			err := p.client.Push(t.Context(), branch, old, p.third, pack)
			repotest.RequireReason(t, v1alpha1.ReasonPushRejected, err)
			assert.True(t, IsStale(err), "%v", err)
			assert.Equal(t, before, p.tip())
		}
		stale(plan.ID{})
		stale(p.first)
		assert.ErrorContains(t, p.client.Push(t.Context(), branch, p.first, p.third, pack), p.second.String())

		p.hook("pre-receive", "env -u GIT_QUARANTINE_PATH git update-ref "+branch+" "+p.first.String())
		err := p.client.Push(t.Context(), branch, p.second, p.third, pack)
		repotest.RequireReason(t, v1alpha1.ReasonPushRejected, err)
		assert.True(t, IsStale(err), "the branch changed after the advertisement: %v", err)
		assert.Equal(t, p.first.String(), p.tip())

		require.NoError(t, os.Remove(filepath.Join(p.Dir, "hooks", "pre-receive")))
		p.Git("update-ref", "-d", branch)
		stale(p.second)
	})
}

func TestPushCredentials(t *testing.T) {
	t.Run("wrong token", func(t *testing.T) {
		p := newPusher(t)
		p.client = newClient(t, p.client.url, Auth{Token: repotest.Token("S3CR3T-other"), Field: "spec.bidirectional.auth"}, Options{})
		err := p.create()
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, "spec.bidirectional.auth")
		assert.ErrorContains(t, err, "write access")
	})
	t.Run("no credentials", func(t *testing.T) {
		p := newPusher(t)
		p.client = newClient(t, p.client.url, Auth{Field: "spec.bidirectional.auth"}, Options{})
		err := p.create()
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, "set spec.bidirectional.auth")
	})
	t.Run("read-only token", func(t *testing.T) {
		g := newSite(t)
		p := fillPusher(t, &pusher{Repo: g.Repo.Repo, client: newClient(t, g.url(), Auth{Token: repotest.Token(tripwire)}, Options{})})
		for _, err := range []error{p.create(), func() error { _, err := p.client.PushRefs(t.Context()); return err }()} {
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			assert.ErrorContains(t, err, "may not push")
			assert.ErrorContains(t, err, "write access")
		}
	})
	t.Run("read-only ssh key", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{})
		err := fillPusher(t, &pusher{Repo: g.Repo.Repo, client: g.client()}).create()
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, "git.auth.sshKey")
		assert.ErrorContains(t, err, "marked as read only")
	})
}

// C7: neither the credentials nor the content of a push leave for another host.
func TestPushRedirectedElsewhere(t *testing.T) {
	var requests atomic.Int32
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer thief.Close()
	for _, service := range []gitserver.Service{gitserver.PushAdvertisement, gitserver.ReceivePack} {
		t.Run(string(service), func(t *testing.T) {
			p := newPusher(t)
			p.web.Inject(gitserver.Redirect(thief.URL).On(service))
			err := p.create()
			repotest.RequireReason(t, v1alpha1.ReasonRedirectRefused, err)
			assert.ErrorContains(t, err, "redirects to another host")
			assert.Empty(t, p.tip())
		})
	}
	t.Run("redirect on the same host", func(t *testing.T) {
		p := newPusher(t)
		p.web.Inject(gitserver.Redirect(p.web.URL("")).On(gitserver.ReceivePack))
		err := p.create()
		repotest.RequireReason(t, v1alpha1.ReasonRedirectRefused, err)
		assert.ErrorContains(t, err, "redirects a push")
	})
	assert.Zero(t, requests.Load())
}

func TestPushToRenamedRepository(t *testing.T) {
	p := newPusher(t)
	p.client = newClient(t, renamed(t, p.web, ""), Auth{Token: repotest.Token(tripwire)}, Options{})
	require.NoError(t, p.create())
	assert.Equal(t, p.second.String(), p.tip())
}

func TestPushFaultReasons(t *testing.T) {
	p := newPusher(t)
	for name, tt := range map[string]struct {
		fault gitserver.Fault
		want  v1alpha1.Reason
	}{
		"401":               {gitserver.Status(401), v1alpha1.ReasonAuthFailed},
		"403":               {gitserver.Status(403), v1alpha1.ReasonAuthFailed},
		"404":               {gitserver.Status(404), v1alpha1.ReasonRefNotFound},
		"429":               {gitserver.Throttle(time.Minute), v1alpha1.ReasonGitThrottled},
		"500":               {gitserver.Status(500), v1alpha1.ReasonGitUnreachable},
		"empty":             {gitserver.Truncate(0), v1alpha1.ReasonGitUnreachable},
		"truncated":         {gitserver.Truncate(20), v1alpha1.ReasonGitUnreachable},
		"stalls":            {gitserver.Stall(20), v1alpha1.ReasonGitTimeout},
		"never starts":      {gitserver.Stall(0), v1alpha1.ReasonGitTimeout},
		"not git":           {gitserver.Rewrite(func([]byte) []byte { return []byte("0008oops" + tripwire) }), v1alpha1.ReasonGitUnreachable},
		"an answer too big": {gitserver.Rewrite(func([]byte) []byte { return bytes.Repeat([]byte("0009\x02zzzz"), 1<<20) }), v1alpha1.ReasonLimitExceeded},
	} {
		for _, service := range []gitserver.Service{gitserver.PushAdvertisement, gitserver.ReceivePack} {
			if service == gitserver.PushAdvertisement && tt.want == v1alpha1.ReasonLimitExceeded {
				continue
			}
			t.Run(name+" during "+string(service), func(t *testing.T) {
				defer p.restore(t)
				o := Options{}
				if tt.want == v1alpha1.ReasonGitTimeout {
					o.StallWindow = time.Second // also for the push after the fault, on a busy machine
				}
				p.client = newClient(t, p.client.url, p.client.auth, o)
				p.web.Inject(tt.fault.On(service))
				repotest.RequireReason(t, tt.want, p.create())
				p.web.Heal()
				require.NoError(t, p.create(), "the client recovers, whether or not the first push arrived")
				assert.Equal(t, p.second.String(), p.tip())
			})
		}
	}
	t.Run("a pack that is too large is PushRejected", func(t *testing.T) {
		defer p.restore(t)
		p.web.Inject(gitserver.Status(http.StatusRequestEntityTooLarge).On(gitserver.ReceivePack))
		err := p.create()
		repotest.RequireReason(t, v1alpha1.ReasonPushRejected, err)
		assert.ErrorContains(t, err, "HTTP 413")
	})
	t.Run("a damaged pack is GitUnreachable", func(t *testing.T) {
		pushers(t, func(t *testing.T, p *pusher) {
			pack := p.pack(p.second, p.first)
			pack[1][len(pack[1])-1] ^= 1
			err := p.client.Push(t.Context(), branch, plan.ID{}, p.second, pack)
			repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
			assert.Empty(t, p.tip())
		})
	})
}

func TestPushToServerThatDoesNotRead(t *testing.T) {
	p := newPusher(t)
	back, err := url.Parse(p.web.URL(""))
	require.NoError(t, err)
	done := make(chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-done
			return
		}
		repotest.ReverseProxy(back).ServeHTTP(w, r)
	}))
	defer front.Close()
	defer close(done)
	c := newClient(t, parseURL(t, front.URL+"/site.git"), p.client.auth, Options{StallWindow: 150 * time.Millisecond})
	err = c.Push(t.Context(), branch, plan.ID{}, p.second, [][]byte{make([]byte, 32<<20)}) // more than the buffers of the connection take
	repotest.RequireReason(t, v1alpha1.ReasonGitTimeout, err)
}

func TestPushToSilentSSHServer(t *testing.T) {
	for _, name := range []string{"before the refs", "before the report"} {
		t.Run(name, func(t *testing.T) {
			g := newShellSite(t, gitserver.SSHOptions{})
			p := fillPusher(t, &pusher{Repo: g.Repo.Repo})
			after := int64(1)
			if name == "before the report" {
				after = int64(len(repotest.RunGit(t, g.Dir, nil, "receive-pack", "--advertise-refs", "."))) + 5
			}
			g.Server.Set(gitserver.SSHOptions{Pushes: true, StallAfter: after, Users: map[string]ssh.PublicKey{"git": g.Public}})
			p.client = newClient(t, g.url(), g.auth(), Options{StallWindow: 150 * time.Millisecond})
			repotest.RequireReason(t, v1alpha1.ReasonGitTimeout, p.create())
		})
	}
}

func TestSlowPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, dog, stop := watch(t.Context(), time.Hour, 10, time.Minute)
		defer stop()
		defer dog.startWait()()
		in := &sentBody{io.NopCloser(trickle{}), dog}
		for range 30 {
			_, err := in.Read(make([]byte, 100))
			require.NoError(t, err)
		}
		assert.NoError(t, ctx.Err())
	})
}

func TestPushCapabilities(t *testing.T) {
	without := func(capability string) gitserver.Fault {
		return gitserver.Rewrite(func(b []byte) []byte {
			return bytes.Replace(b, []byte(capability), bytes.Repeat([]byte("x"), len(capability)), 1)
		}).On(gitserver.PushAdvertisement)
	}
	t.Run("no report-status", func(t *testing.T) {
		p := newPusher(t)
		p.web.Inject(gitserver.Rewrite(func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte("report-status"), []byte("xeport-status"))
		}).On(gitserver.PushAdvertisement))
		repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, p.create())
	})
	t.Run("no delete-refs", func(t *testing.T) {
		p := newPusher(t)
		require.NoError(t, p.create())
		p.web.Inject(without("delete-refs"))
		err := p.client.Push(t.Context(), branch, p.second, plan.ID{}, nil)
		repotest.RequireReason(t, v1alpha1.ReasonPushRejected, err)
		assert.ErrorContains(t, err, "delete-refs")
		assert.Equal(t, p.second.String(), p.tip())
	})
	t.Run("no side-band-64k", func(t *testing.T) {
		p := newPusher(t)
		p.web.Inject(without("side-band-64k"))
		require.NoError(t, p.create())
	})
}

func TestPushInvalidRef(t *testing.T) {
	p := newPusher(t)
	p.web.Forget()
	for _, ref := range []string{"", "main", "HEAD", "refs/heads/a b", "refs/heads/a\n", "refs/heads/a\x00 x", "refs/heads/../a", "refs/heads/.a"} {
		t.Run(ref, func(t *testing.T) {
			repotest.RequireReason(t, v1alpha1.ReasonPushRejected, p.client.Push(t.Context(), ref, plan.ID{}, p.second, nil))
		})
	}
	require.Error(t, p.client.Push(t.Context(), branch, plan.ID{}, plan.ID{}, nil))
	assert.Empty(t, p.web.Requests())
}

func TestPushRefsWithoutAlternates(t *testing.T) {
	p := newPusher(t)
	require.NoError(t, os.WriteFile(filepath.Join(p.Dir, "objects", "info", "alternates"), []byte(filepath.Join(p.mine.Dir, "objects")+"\n"), 0o600))
	refs, err := p.client.PushRefs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, map[string]plan.ID{"refs/heads/main": p.first}, refs.ByName)
}
