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
)

// membership is a gateway's place in a redundant pair, guarded by Gateway.mu.
type membership struct {
	access, active, peer bool
	pair                 *Pair
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

// pending reports whether copying is paused.
func (p *Pair) pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

// leads reports whether g is the node that is copied from.
func (p *Pair) leads(g *Gateway) bool {
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
	up := p.to.lifeOf()
	return errors.Join(p.to.passQuiet(up, kindConfig), p.to.passQuiet(up, kindProjects))
}

func (p *Pair) copyTrees() (changed bool, err error) {
	p.from.saving.Lock()
	want, err := p.from.replicated()
	p.from.saving.Unlock()
	if err != nil {
		return false, err
	}
	p.to.saving.Lock()
	defer p.to.saving.Unlock()
	have, err := p.to.replicated()
	if err != nil {
		return false, err
	}
	for name, raw := range want {
		if old, ok := have[name]; ok && bytes.Equal(old, raw) {
			continue
		}
		changed = true
		if err := p.to.putFile(name, raw); err != nil {
			return changed, err
		}
	}
	for name := range have {
		if _, ok := want[name]; ok || strings.HasPrefix(name, blobDir+"/") {
			continue
		}
		changed = true
		if err := p.to.canaries.remove(name); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// replicated reads the files that a pair copies.
func (g *Gateway) replicated() (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(g.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed since its directory was read
		case err != nil:
			return err
		case d.IsDir():
			if name != "." && !towards(name) {
				return fs.SkipDir
			}
			return nil
		case !inReplicated(name) || !g.partOfResource(name):
			return nil
		}
		files[name], err = readFile(g.root, name)
		return err
	})
	return files, err
}

// towards reports whether a directory is replicated, or contains one that is.
func towards(dir string) bool {
	return dir == "config" || dir == resourcesDir || dir == projectsDir || inReplicated(dir+"/x")
}

func inReplicated(name string) bool {
	if strings.HasPrefix(name, projectsDir+"/") {
		return !strings.Contains(name, "/.stoker/")
	}
	rest, ok := strings.CutPrefix(name, resourcesDir+"/")
	collection, _, deep := strings.Cut(rest, "/")
	return ok && deep && collection != "external" && collection != "local"
}

// partOfResource reports whether a file belongs to a resource. With Unknowns.ReplicateAllFiles every file does.
func (g *Gateway) partOfResource(name string) bool {
	base := path.Base(name)
	if g.opts.Unknowns.ReplicateAllFiles || strings.HasPrefix(name, blobDir+"/") ||
		slices.Contains([]string{resourceFile, unaryFile, "project.json", "config-mode.json"}, base) {
		return true
	}
	dir := path.Dir(name)
	if exists(g.root, path.Join(dir, unaryFile)) {
		return true
	}
	raw, err := readFile(g.root, path.Join(dir, resourceFile))
	if err != nil {
		return false
	}
	doc, err := parseJSON(raw)
	list, _ := dig(doc, "files").(array)
	return err == nil && slices.Contains(list, node(base))
}

// spread copies changes to the peer, if there is one.
func (g *Gateway) spread() error {
	at := g.place()
	if at.pair == nil || !at.access || !at.peer || !at.pair.leads(g) {
		return nil
	}
	return at.pair.Replicate()
}

// SetConfigAccess sets whether the node may change its configuration, and whether it sees its peer.
func (g *Gateway) SetConfigAccess(access, peer bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.redundancy.access, g.redundancy.active, g.redundancy.peer = access, access, peer
}

// place returns the node's membership.
func (g *Gateway) place() membership {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.redundancy
}

// lifeOf returns the context of the gateway's current run.
func (g *Gateway) lifeOf() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.up
}
