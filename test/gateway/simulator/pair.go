package simulator

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// membership is a gateway's role in a redundant pair. Gateway.mu guards it.
type membership struct {
	access bool // may change its configuration
	active bool
	peer   bool  // sees the other node
	pair   *Pair // nil outside a pair
}

// Pair is two redundant gateways. The one with config access copies what it has loaded to the other: core, the
// deployment modes and the projects, but neither external nor local [IA].
type Pair struct {
	mu     sync.Mutex
	from   *Gateway // has config access
	to     *Gateway
	paused bool
}

// NewPair makes a pair of two gateways that were started with the roles Master and Backup, and copies once.
func NewPair(master, backup *Gateway) (*Pair, error) {
	if master.opts.Role != "Master" || backup.opts.Role != "Backup" {
		return nil, errors.New("a pair is made of a Master and a Backup")
	}
	p := &Pair{from: master, to: backup}
	for _, g := range []*Gateway{master, backup} {
		g.mu.Lock()
		g.redundancy.pair, g.redundancy.peer = p, true
		g.mu.Unlock()
	}
	return p, p.Replicate()
}

// Failover gives config access and activity to the other node, like a user or a failure. connected reports whether the
// nodes still see each other.
func (p *Pair) Failover(connected bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from, p.to = p.to, p.from
	p.from.SetConfigAccess(true, connected)
	p.to.SetConfigAccess(false, connected)
}

// Pause stops copying, as over a broken connection. The nodes still report that they are connected, and that a sync is
// pending.
func (p *Pair) Pause(paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = paused
}

// isPaused reports whether copying is paused.
func (p *Pair) isPaused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

// isSource reports whether the pair copies from g.
func (p *Pair) isSource(g *Gateway) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.from == g
}

// Replicate copies now, unless paused, and loads the copied files.
func (p *Pair) Replicate() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state, _ := p.to.State(); p.paused || state != Running {
		return nil
	}
	changed, err := p.copyTrees()
	if err != nil || !changed {
		return err
	}
	runCtx := p.to.currentRun()
	return errors.Join(p.to.scanTree(runCtx, kindConfig), p.to.scanTree(runCtx, kindProjects))
}

func (p *Pair) copyTrees() (changed bool, err error) {
	p.from.filesMu.Lock()
	want, err := p.from.readReplicated()
	p.from.filesMu.Unlock()
	if err != nil {
		return false, err
	}
	p.to.filesMu.Lock()
	defer p.to.filesMu.Unlock()
	have, err := p.to.readReplicated()
	if err != nil {
		return false, err
	}
	for name, raw := range want {
		if old, ok := have[name]; ok && bytes.Equal(old, raw) {
			continue
		}
		changed = true
		if err := p.to.canaries.Put(name, raw); err != nil {
			return changed, err
		}
	}
	for name := range have {
		if _, ok := want[name]; ok || strings.HasPrefix(name, datadir.BlobDir+"/") {
			continue
		}
		changed = true
		if err := p.to.canaries.Remove(name); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// readReplicated reads the files that a pair copies.
func (g *Gateway) readReplicated() (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(g.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed since its directory was read
		case err != nil:
			return err
		case d.IsDir():
			if name != "." && !containsReplicated(name) {
				return fs.SkipDir
			}
			return nil
		case !isReplicated(name) || !g.partOfResource(name):
			return nil
		}
		files[name], err = datadir.Read(g.root, name)
		return err
	})
	return files, err
}

// containsReplicated reports whether a pair copies a directory, or one below it.
func containsReplicated(dir string) bool {
	return dir == "config" || dir == datadir.ResourcesDir || dir == datadir.ProjectsDir || isReplicated(dir+"/x")
}

// isReplicated reports whether a pair copies the tree of a file: the projects, and all collections except external and
// local.
func isReplicated(name string) bool {
	if strings.HasPrefix(name, datadir.ProjectsDir+"/") {
		return !strings.Contains(name, "/.stoker/")
	}
	rest, ok := strings.CutPrefix(name, datadir.ResourcesDir+"/")
	collection, _, deep := strings.Cut(rest, "/")
	return ok && deep && collection != "external" && collection != "local"
}

// partOfResource reports whether a file belongs to a resource. With Unknowns.ReplicateAllFiles every file does.
func (g *Gateway) partOfResource(name string) bool {
	base := path.Base(name)
	if g.opts.Unknowns.ReplicateAllFiles || strings.HasPrefix(name, datadir.BlobDir+"/") ||
		slices.Contains([]string{resource.File, resource.UnaryFile, "project.json", "config-mode.json"}, base) {
		return true
	}
	dir := path.Dir(name)
	if datadir.Exists(g.root, path.Join(dir, resource.UnaryFile)) {
		return true
	}
	raw, err := datadir.Read(g.root, path.Join(dir, resource.File))
	if err != nil {
		return false
	}
	doc, err := ordered.Parse(raw)
	list, _ := ordered.Dig(doc, "files").(ordered.Array)
	return err == nil && slices.Contains(list, ordered.Value(base))
}

// replicate copies changes to the peer, if g is the source of a pair.
func (g *Gateway) replicate() error {
	m := g.membership()
	if m.pair == nil || !m.access || !m.peer || !m.pair.isSource(g) {
		return nil
	}
	return m.pair.Replicate()
}

// SetConfigAccess sets whether the node may change its configuration, and whether it sees its peer.
func (g *Gateway) SetConfigAccess(access, peer bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.redundancy.access, g.redundancy.active, g.redundancy.peer = access, access, peer
}

func (g *Gateway) membership() membership {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.redundancy
}

// currentRun returns the context of the gateway's current run.
func (g *Gateway) currentRun() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.runCtx
}
