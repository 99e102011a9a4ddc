package propose

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// notes are notes in memory. While fail is set, each write fails with it.
type notes struct {
	mu      sync.Mutex
	content map[string][]byte
	fail    error
}

func (n *notes) Note(name string) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.content[name], nil
}

func (n *notes) SetNote(name string, b []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return n.fail
	}
	n.content[name] = slices.Clone(b)
	return nil
}

// hub is a forge in memory, shared by all gateways of a test.
type hub struct {
	mu    sync.Mutex
	repo  *gitserver.Repo
	list  []forge.PullRequest
	calls int
	fail  error // of the next call
	lose  bool  // whether the answer of the next Create is lost
	short bool  // whether it shows only the first digits of commits
}

// begin begins a call. It returns the function that ends the call, and the error of fail.
func (h *hub) begin() (func(), error) {
	h.mu.Lock()
	h.calls++
	err := h.fail
	h.fail = nil
	return h.mu.Unlock, err
}

// find returns the pull requests to keep, newest first.
func (h *hub) find(keep func(forge.PullRequest) bool) []forge.PullRequest {
	var out []forge.PullRequest
	for _, pr := range slices.Backward(h.list) {
		if keep(pr) {
			pr.Commit = h.repo.Tip(pr.Branch)
			if h.short {
				pr.Commit = pr.Commit[:min(12, len(pr.Commit))]
			}
			out = append(out, pr)
		}
	}
	return out
}

func (h *hub) ByHead(_ context.Context, branch, base string) ([]forge.PullRequest, error) {
	end, err := h.begin()
	defer end()
	return h.find(func(pr forge.PullRequest) bool { return pr.Branch == branch && (base == "" || pr.Base == base) }), err
}

func (h *hub) Get(_ context.Context, n int64) (forge.PullRequest, error) {
	end, err := h.begin()
	defer end()
	list := h.find(func(pr forge.PullRequest) bool { return pr.Number == n })
	if err == nil && len(list) == 0 {
		return forge.PullRequest{}, failure.New(v1alpha1.ReasonUnsupportedRepository, "no such pull request")
	}
	return slices.Concat(list, []forge.PullRequest{{}})[0], err
}

func (h *hub) Open(_ context.Context, base string) ([]forge.PullRequest, error) {
	end, err := h.begin()
	defer end()
	return h.find(func(pr forge.PullRequest) bool { return pr.State == forge.Open && pr.Base == base }), err
}

func (h *hub) Create(_ context.Context, d forge.Draft) (forge.PullRequest, error) {
	end, err := h.begin()
	defer end()
	if err != nil {
		return forge.PullRequest{}, err
	}
	for _, pr := range h.list {
		if pr.State == forge.Open && pr.Branch == d.Branch && pr.Base == d.Base {
			return forge.PullRequest{}, forge.ErrExists
		}
	}
	n := int64(len(h.list) + 1)
	pr := forge.PullRequest{Number: n, URL: fmt.Sprintf("https://forge.example.com/pr/%d", n), State: forge.Open, Branch: d.Branch, Base: d.Base, Title: d.Title, Body: d.Body}
	h.list = append(h.list, pr)
	if h.lose {
		h.lose = false
		return forge.PullRequest{}, failure.New(v1alpha1.ReasonGitUnreachable, "the answer was lost")
	}
	return pr, nil
}

func (h *hub) Update(_ context.Context, n int64, title, body string) error {
	end, err := h.begin()
	defer end()
	h.list[n-1].Title, h.list[n-1].Body = title, body
	return err
}

func (h *hub) Close(_ context.Context, n int64, _ string) error {
	end, err := h.begin()
	defer end()
	if h.list[n-1].State == forge.Open {
		h.list[n-1].State = forge.Closed
	}
	return err
}

func (h *hub) open() []forge.PullRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.find(func(pr forge.PullRequest) bool { return pr.State == forge.Open })
}

// plant is a git server with a forge, and the gateways that are synced to its main branch.
type plant struct {
	t      testing.TB
	repo   *gitserver.Repo
	server *gitserver.Server
	hub    *hub
}

func newPlant(t testing.TB) *plant {
	root := t.TempDir()
	r := gitserver.NewRepo(t, filepath.Join(root, "site.git"))
	srv, err := gitserver.Start(root, gitserver.Options{Pushes: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	r.Commit("first", gitserver.Files(withView(t, `{"v":1}`)))
	return &plant{t, r, srv, &hub{repo: r}}
}

// gateway is one gateway with its agent.
type gateway struct {
	*scene
	plant    *plant
	p        *Proposer
	notes    *notes
	store    *repo.Store
	dir      *repo.Remote // the directory of the repository, for pull
	settings Settings
	commit   plan.ID
	clock    time.Time
	last     *v1alpha1.Proposal
	synced   bool // a sync has written files since the last step
	standby  bool
	before   map[string]string // the files of the first sync
	textErr  error             // of the next read of a commit on the server
	walkErr  error             // of each walk
}

func (pl *plant) remote(address string) *repo.Remote {
	pl.t.Helper()
	u, err := repo.ParseURL(address)
	require.NoError(pl.t, err)
	remote, err := repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
	require.NoError(pl.t, err)
	pl.t.Cleanup(func() { require.NoError(pl.t, remote.Close()) })
	return remote
}

// gateway returns a gateway of the plant that runs the tip of main.
func (pl *plant) gateway(name string) *gateway {
	pl.t.Helper()
	remote, dir := pl.remote(pl.server.URL("site.git")), pl.remote(pl.repo.Dir)
	store, err := repo.Open(pl.t.TempDir(), repo.StoreOptions{})
	require.NoError(pl.t, err)
	rules, err := plan.NewRules(plan.Rules{Mappings: []plan.Mapping{mapping("site/projects", "projects"), mapping("site/config", "config")}})
	require.NoError(pl.t, err)
	g := &gateway{
		scene: &scene{t: pl.t, disk: plantest.NewDisk(nil), manifest: &plantest.Manifest{}, rules: rules},
		plant: pl, notes: &notes{content: map[string][]byte{}}, store: store, dir: dir, clock: time.Now(),
		settings: Settings{
			Identity: Identity{"plants", name}, Branch: "gateway-changes/plants/" + name, BaseBranch: "main", Debounce: 30 * time.Second,
			Limits: generous, Guard: noGuard, Provider: "hub", Remote: remote, Forge: pl.hub,
			Watches: func(string) bool { return true },
		},
	}
	g.restart()
	pl.t.Cleanup(func() {
		g.p.Close()
		require.NoError(pl.t, store.Close())
	})
	g.pull()
	g.before = g.disk.Files()
	return g
}

// opened returns a gateway whose change has an open pull request.
func opened(t testing.TB) (*plant, *gateway) {
	t.Helper()
	pl := newPlant(t)
	g := pl.gateway("a")
	g.proposes(`{"v":2}`)
	require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
	return pl, g
}

// interrupted returns a gateway whose agent ended between a push and the record of it. It knows no forge.
func interrupted(t testing.TB) (*plant, *gateway) {
	t.Helper()
	pl := newPlant(t)
	g := pl.gateway("a")
	g.settings.Forge = nil
	g.proposes(`{"v":2}`)
	rec, err := loadRecord(g.notes)
	require.NoError(t, err)
	rec.Pending, rec.Tip = rec.Tip, plan.ID{}
	require.NoError(t, rec.save(g.notes))
	g.restart()
	return pl, g
}

// proposes saves a view, and lets a minute pass, in which the change is proposed if nothing prevents that.
func (g *gateway) proposes(json string) {
	g.t.Helper()
	g.save(json)
	g.settle(minute)
}

// undo undoes what was saved on the gateway since its first sync.
func (g *gateway) undo() {
	for _, name := range []string{"view.json", "resource.json", "thumbnail.png"} {
		g.disk.Write(view+name, g.before[view+name])
	}
}

// restart replaces the agent's process.
func (g *gateway) restart() {
	if g.p != nil {
		g.p.Close()
	}
	g.p = New(slog.New(slog.DiscardHandler), func() time.Time { return g.clock })
	g.p.Wait = func(context.Context, time.Duration) error { return nil }
}

// pull syncs the gateway to main, and returns the number of files that this wrote.
func (g *gateway) pull() int {
	g.t.Helper()
	ref, err := repo.ParseRef("main")
	require.NoError(g.t, err)
	res, err := g.dir.Resolve(g.t.Context(), ref)
	require.NoError(g.t, err)
	_, err = g.store.Fetch(g.t.Context(), g.dir, res.Commit, res.Ref)
	require.NoError(g.t, err)
	root, err := g.store.RootTree(res.Commit)
	require.NoError(g.t, err)
	d, err := desired.NewTree(g.store, root, g.rules)
	require.NoError(g.t, err)
	in := planner.Input{Desired: d, Previous: g.desired, Manifest: g.manifest, State: g.disk, From: g.manifest.Head.Commit, To: res.Commit, AllowMassDeletion: true}
	c, err := planner.Compute(in)
	require.NoError(g.t, err)
	g.manifest, _ = plantest.Apply(g.t, c, g.rules, d, g.disk, g.manifest)
	g.desired, g.root, g.commit = d, root, res.Commit
	n := c.Counts()
	g.synced = n.Added+n.Modified+n.Deleted > 0
	return n.Added + n.Modified + n.Deleted
}

// changed returns what a comparison of the disk with git finds. Like the agent's, it adopts files of the same meaning.
func (g *gateway) changed() []string {
	var list []string
	x := newBuilder(Base{Desired: g.desired, State: g.disk}, generous, noGuard)
	for w, err := range g.desired.Walk() {
		require.NoError(g.t, err)
		st, err := g.disk.Stat(w.Path)
		require.NoError(g.t, err)
		if content, ok := g.disk.Content(w.Path); !ok || plan.BlobID([]byte(content)) != w.ID {
			if !ok || !x.sameMeaning(change{path: w.Path, want: w, wanted: true, stat: st}) {
				list = append(list, w.Path)
				continue
			}
			r := g.manifest.Records[w.Path]
			r.Have, r.Size, r.Mtime = plan.BlobID([]byte(content)), st.Size, st.Mtime
			g.manifest.Records[w.Path] = r
		}
	}
	for p := range g.disk.Files() {
		if _, ok, err := g.desired.Lookup(p); err == nil && !ok {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return list
}

// step compares the files and calls Step. It returns when the next Step is due.
func (g *gateway) step() time.Time {
	g.t.Helper()
	var due time.Time
	if g.synced {
		g.p.Wrote()
	}
	g.last, due = g.p.Step(g.t.Context(), &g.settings, Input{
		Notes: g.notes, Changed: g.changed(), Compared: g.clock, Standby: g.standby,
		Added: func(Base) ([]string, error) { return nil, g.walkErr }, // Changed has them
		Base: func() (Base, error) {
			return Base{Commit: g.commit, Root: g.root, Objects: g.store, Desired: g.desired, Manifest: g.manifest, State: g.disk, RootOf: g.store.RootTree,
				CommitText: func(ctx context.Context, id plan.ID) ([]byte, error) {
					if err := g.textErr; err != nil {
						g.textErr = nil
						return nil, err
					}
					return g.store.CommitText(ctx, g.settings.Remote, id)
				}}, nil
		},
	})
	g.synced = false
	return due
}

// settle lets d pass on the clock, and steps whenever a step is due.
func (g *gateway) settle(d time.Duration) {
	g.t.Helper()
	end := g.clock.Add(d)
	for range 200 {
		due := g.step()
		switch {
		case g.p.work.runs():
			select {
			case <-g.p.Done():
			case <-time.After(time.Minute):
				g.t.Fatal("the background work does not end")
			}
		case due.IsZero() || due.After(end):
			g.clock = end
			return
		case due.After(g.clock):
			g.clock = due
		default:
			g.clock = g.clock.Add(time.Second)
		}
	}
	g.t.Fatalf("the proposer does not become idle: %+v", g.last)
}

// event lets the file system report a save some time before now; negative if its clock is wrong.
func (g *gateway) event(before time.Duration) {
	now := g.clock
	g.clock = now.Add(-before)
	g.p.FileEvent()
	g.clock = now
}

func (g *gateway) state() v1alpha1.ProposalState {
	if g.last == nil {
		return ""
	}
	return g.last.State
}

// merge merges the only open pull request as forges do, with a merge commit if style is "merge", and otherwise with a commit of its own.
func (pl *plant) merge(style string) {
	pl.t.Helper()
	open := pl.hub.open()
	require.Len(pl.t, open, 1)
	tree := pl.repo.Git("rev-parse", open[0].Branch+"^{tree}")
	args := []string{"commit-tree", "-m", style, "-p", pl.repo.Git("rev-parse", "main"), tree}
	if style == "merge" {
		args = append(args, "-p", open[0].Commit)
	}
	commit := pl.repo.Git(args...)
	pl.repo.ForcePush(commit)
	pl.hub.mu.Lock()
	defer pl.hub.mu.Unlock()
	pl.hub.list[open[0].Number-1].State = forge.Merged
}

// failing is a hub of which one call of ByHead, Open or Create fails: number at, counted from 0.
type failing struct {
	*hub
	at, n int
	err   error
}

func (f *failing) count() error {
	f.n++
	if f.n-1 == f.at {
		return f.err
	}
	return nil
}

func (f *failing) ByHead(ctx context.Context, branch, base string) ([]forge.PullRequest, error) {
	if err := f.count(); err != nil {
		return nil, err
	}
	return f.hub.ByHead(ctx, branch, base)
}

func (f *failing) Open(ctx context.Context, base string) ([]forge.PullRequest, error) {
	if err := f.count(); err != nil {
		return nil, err
	}
	return f.hub.Open(ctx, base)
}

func (f *failing) Create(ctx context.Context, d forge.Draft) (forge.PullRequest, error) {
	if err := f.count(); err != nil {
		return forge.PullRequest{}, err
	}
	return f.hub.Create(ctx, d)
}
