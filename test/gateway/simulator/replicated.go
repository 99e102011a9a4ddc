package simulator

import (
	"bytes"
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

// readReplicated reads the files that a pair copies.
func (d *Data) readReplicated() (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(d.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed since its directory was read
		case err != nil:
			return err
		case entry.IsDir():
			if name != "." && !containsReplicated(name) {
				return fs.SkipDir
			}
			return nil
		case !isReplicated(name) || !d.partOfResource(name):
			return nil
		}
		files[name], err = datadir.Read(d.root, name)
		return err
	})
	return files, err
}

// containsReplicated reports whether a pair copies a directory, or one below it.
func containsReplicated(dir string) bool {
	return dir == "config" || dir == datadir.ResourcesDir || dir == datadir.ProjectsDir || isReplicated(dir+"/x")
}

// isReplicated reports whether a pair copies the tree of a file: the projects without the agent's folders .stoker, and all
// collections except external and local.
func isReplicated(name string) bool {
	if strings.HasPrefix(name, datadir.ProjectsDir+"/") {
		return !strings.Contains(name, "/.stoker/")
	}
	rest, ok := strings.CutPrefix(name, datadir.ResourcesDir+"/")
	collection, _, deep := strings.Cut(rest, "/")
	return ok && deep && collection != "external" && collection != "local"
}

// partOfResource reports whether a file belongs to a resource, or describes a project or a collection. With
// Unknowns.ReplicateAllFiles every file does.
func (d *Data) partOfResource(name string) bool {
	base := path.Base(name)
	if d.opts.Unknowns.ReplicateAllFiles || strings.HasPrefix(name, datadir.BlobDir+"/") ||
		slices.Contains([]string{resource.File, resource.UnaryFile, "project.json", "config-mode.json"}, base) {
		return true
	}
	dir := path.Dir(name)
	if datadir.Exists(d.root, path.Join(dir, resource.UnaryFile)) {
		return true
	}
	raw, err := datadir.Read(d.root, path.Join(dir, resource.File))
	if err != nil {
		return false
	}
	doc, err := ordered.Parse(raw)
	list, _ := ordered.Dig(doc, "files").(ordered.Array)
	return err == nil && slices.Contains(list, ordered.Value(base))
}

// Redundancy is a gateway's role in a redundant pair.
type Redundancy struct {
	mu      sync.Mutex
	current membership
}

type membership struct {
	access bool // may change its configuration
	active bool
	peer   bool  // sees the other node
	pair   *Pair // nil outside a pair
}

func newRedundancy(role string) *Redundancy {
	return &Redundancy{current: membership{access: role != "Backup", active: role != "Backup", peer: role != "Independent"}}
}

// SetConfigAccess sets whether the node is active and may change its configuration, and whether it sees its peer.
func (r *Redundancy) SetConfigAccess(access, peer bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.access, r.current.active, r.current.peer = access, access, peer
}

func (r *Redundancy) status() membership {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// join makes the node a part of a pair, and connects it.
func (r *Redundancy) join(p *Pair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.pair, r.current.peer = p, true
}

// replicate copies changes to the peer, if the node is the source of a pair and sees the peer.
func (r *Redundancy) replicate() error {
	m := r.status()
	if m.pair == nil || !m.access || !m.peer || !m.pair.isSource(r) {
		return nil
	}
	return m.pair.Replicate()
}

// Pair is two redundant gateways. After each scan and each save, the one with config access copies its resources to the other:
// core, the deployment modes and the projects, but neither external nor local, as the vendor documents.
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
	master.Redundancy.join(p)
	backup.Redundancy.join(p)
	return p, p.Replicate()
}

// Failover gives config access and activity to the other node, like a user or a failure. connected reports whether the
// nodes still see each other.
func (p *Pair) Failover(connected bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from, p.to = p.to, p.from
	p.from.Redundancy.SetConfigAccess(true, connected)
	p.to.Redundancy.SetConfigAccess(false, connected)
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

// isSource reports whether the pair copies from a node.
func (p *Pair) isSource(node *Redundancy) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.from.Redundancy == node
}

// Replicate copies now and loads the copied files, unless the pair is paused or the target does not run.
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
	runCtx := p.to.run.current()
	return errors.Join(p.to.Scans.scan(runCtx, kindConfig), p.to.Scans.scan(runCtx, kindProjects))
}

func (p *Pair) copyTrees() (changed bool, err error) {
	p.from.Data.writing.Lock()
	want, err := p.from.Data.readReplicated()
	p.from.Data.writing.Unlock()
	if err != nil {
		return false, err
	}
	p.to.Data.writing.Lock()
	defer p.to.Data.writing.Unlock()
	have, err := p.to.Data.readReplicated()
	if err != nil {
		return false, err
	}
	for name, raw := range want {
		if old, ok := have[name]; ok && bytes.Equal(old, raw) {
			continue
		}
		changed = true
		if err := p.to.Canaries.Put(name, raw); err != nil {
			return changed, err
		}
	}
	for name := range have {
		if _, ok := want[name]; ok || strings.HasPrefix(name, datadir.BlobDir+"/") {
			continue
		}
		changed = true
		if err := p.to.Canaries.Remove(name); err != nil {
			return changed, err
		}
	}
	return changed, nil
}
