package simulator

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// saveResource writes data files and a signed resource.json, and returns the new resource.
func (d *Data) saveResource(dir string, r *resource.Resource, actor string, files map[string][]byte) (*resource.Resource, error) {
	next, doc, err := r.WithFiles(files).Sign(actor, d.clock.now())
	if err != nil {
		return nil, err
	}
	put := d.canaries.Put
	if d.opts.Unknowns.SaveInPlace {
		put = d.canaries.Write
	}
	for name, raw := range files {
		if err := put(path.Join(dir, name), raw); err != nil {
			return nil, err
		}
	}
	if raw, ok := files["config.json"]; ok {
		if next.Config, err = ordered.Parse(raw); err != nil {
			return nil, err
		}
	}
	return next, put(path.Join(dir, resource.File), doc)
}

// saveProjectResource saves and loads a resource of a project. The caller holds writing.
func (d *Data) saveProjectResource(name string, r *resource.Resource, actor string, files map[string][]byte) (*resource.Resource, error) {
	dir := path.Join(datadir.ProjectsDir, name, r.Path)
	saved, err := d.saveResource(dir, r, actor, files)
	if err == nil && !d.opts.NoBlobs {
		err = d.storeBlobs(dir, saved)
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.projects[name]; p != nil {
		changed := *p
		changed.Tree = p.Tree.With(saved)
		d.projects = maps.Clone(d.projects)
		d.projects[name] = &changed
	}
	return saved, nil
}

// putConfig writes config.json of a resource and loads it.
func (d *Data) putConfig(collection, name, actor string, doc ordered.Value) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	dir := path.Join(datadir.ResourcesDir, collection, name)
	saved, err := d.saveResource(dir, resource.New(name, "A"), actor, map[string][]byte{"config.json": ordered.Pretty(doc)})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config = d.config.With(collection, saved)
	return nil
}

// signExternal does what a projects scan does to resources whose content differs from the signed one: it writes
// resource.json back with the actor "external", the time, and a matching signature. If blobs is set, it also keeps a copy of
// each file's content in projects/.resources, named by its digest. No caller passes the tree of the collection external.
func (d *Data) signExternal(t *resource.Tree, blobs bool) {
	for _, name := range slices.Sorted(maps.Keys(t.Resources)) {
		r := t.Resources[name]
		dir := path.Join(t.Dir, name)
		if blobs && !d.opts.NoBlobs {
			if err := d.storeBlobs(dir, r); err != nil {
				d.logs.add(levelWarn, "ProjectResources", "could not keep a copy of "+dir+": "+err.Error())
			}
		}
		if r.Unary || d.opts.NoWriteBack {
			continue
		}
		if signature, err := r.Signature(); err != nil || signature == r.StoredSignature() {
			continue
		}
		next, raw, err := r.Sign("external", d.clock.now())
		if err == nil {
			err = d.canaries.Replace(path.Join(dir, resource.File), raw)
		}
		if err != nil {
			d.logs.add(levelError, "ProjectResources", "could not sign "+dir+": "+err.Error())
			continue
		}
		t.Resources[name] = next
		d.logs.add(levelInfo, "ProjectResources", "Setting LastModification to external: "+dir)
	}
}

func (d *Data) storeBlobs(dir string, r *resource.Resource) error {
	for file, digest := range r.Digests {
		blob := path.Join(datadir.BlobDir, digest)
		if datadir.Exists(d.root, blob) {
			continue
		}
		raw, err := datadir.Read(d.root, path.Join(dir, file))
		if err != nil {
			return err
		}
		if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != digest {
			continue // the file has changed since it was loaded; the next scan reads it
		}
		if err := d.canaries.Write(blob, raw); err != nil {
			return err
		}
	}
	return nil
}

// Noise is a change that a running gateway makes to its files without any user action.
type Noise string

// The kinds of noise.
const (
	// NoiseTimestamp rewrites a project's resource.json with only another time and a matching signature.
	NoiseTimestamp Noise = "timestamp"
	// NoiseKeyOrder rewrites a JSON data file of a resource with its keys in another order, and signs it.
	NoiseKeyOrder Noise = "key-order"
	// NoiseThumbnail redraws a thumbnail.png, and signs the resource.
	NoiseThumbnail Noise = "thumbnail"
	// NoiseValueStore creates and deletes the -wal file of the tag value store.
	NoiseValueStore Noise = "value-store"
	// NoiseModuleTags rewrites the tag folders of a provider that a module creates at run time.
	NoiseModuleTags Noise = "module-tags"
)

// Noises are all kinds.
var Noises = []Noise{NoiseTimestamp, NoiseKeyOrder, NoiseThumbnail, NoiseValueStore, NoiseModuleTags}

// NoiseMaker makes noise.
type NoiseMaker struct {
	data  *Data
	count int // of noises so far; data.writing guards it
}

// Make makes one noise. Successive calls affect different resources; without a suitable resource it does nothing.
func (n *NoiseMaker) Make(kind Noise) error {
	n.data.writing.Lock()
	defer n.data.writing.Unlock()
	n.count++
	switch kind {
	case NoiseTimestamp:
		return n.rewriteResource(func(string, *resource.Resource) (map[string][]byte, error) { return map[string][]byte{}, nil })
	case NoiseKeyOrder:
		return n.rewriteResource(n.reorderKeys)
	case NoiseThumbnail:
		return n.rewriteResource(n.redrawThumbnail)
	case NoiseValueStore:
		return n.touchValueStore()
	case NoiseModuleTags:
		return n.rewriteModuleTags()
	}
	return fmt.Errorf("no noise %q: want one of %v", kind, Noises)
}

// rewriteResource rewrites files of a project resource, and its resource.json with the same actor. change returns the
// new files, or nil for an unsuitable resource.
func (n *NoiseMaker) rewriteResource(change func(dir string, r *resource.Resource) (map[string][]byte, error)) error {
	projects := n.data.loadedProjects()
	type candidate struct {
		project string
		r       *resource.Resource
	}
	var all []candidate
	for _, name := range slices.Sorted(maps.Keys(projects)) {
		for _, p := range projects[name].Tree.Names("") {
			if r := projects[name].Tree.Resources[p]; !r.Unary {
				all = append(all, candidate{name, r})
			}
		}
	}
	for i := range all {
		x := all[(n.count+i)%len(all)]
		files, err := change(path.Join(datadir.ProjectsDir, x.project, x.r.Path), x.r)
		if err != nil {
			return err
		}
		if files == nil {
			continue
		}
		actor, _ := ordered.Dig(x.r.Attributes(), "lastModification", "actor").(string)
		_, err = n.data.saveProjectResource(x.project, x.r, actor, files)
		return err
	}
	return nil
}

// reorderKeys returns the first JSON object among a resource's files with its keys reversed.
func (n *NoiseMaker) reorderKeys(dir string, r *resource.Resource) (map[string][]byte, error) {
	for _, f := range r.Files {
		if !strings.HasSuffix(f, ".json") {
			continue
		}
		raw, err := datadir.Read(n.data.root, path.Join(dir, f))
		if err != nil {
			return nil, nil //nolint:nilerr // the resource is being deleted, and so is unsuitable
		}
		v, err := ordered.Parse(raw)
		o, ok := v.(ordered.Object)
		if err != nil || !ok || len(o) < 2 {
			continue
		}
		o = slices.Clone(o)
		slices.Reverse(o)
		return map[string][]byte{f: ordered.Pretty(o)}, nil
	}
	return nil, nil
}

// redrawThumbnail returns a new thumbnail for a view that has one.
func (n *NoiseMaker) redrawThumbnail(_ string, r *resource.Resource) (map[string][]byte, error) {
	if !slices.Contains(r.Files, thumbnailFile) {
		return nil, nil
	}
	return map[string][]byte{thumbnailFile: fakePNG("drawn at " + n.data.clock.now().Format(time.RFC3339Nano))}, nil
}

const walFile = "config/ignition/tags/valueStore.idb-wal"

func (n *NoiseMaker) touchValueStore() error {
	if err := n.data.canaries.Write(walFile, []byte("simulated pages")); err != nil {
		return err
	}
	return n.data.canaries.Remove(walFile)
}

// rewriteModuleTags rewrites the tags of a provider that a module creates.
func (n *NoiseMaker) rewriteModuleTags() error {
	const name = "ignition/tag-definition/MQTT Engine/Edge Nodes"
	dir := path.Join(datadir.ResourcesDir, "core", name)
	tags := ordered.Array{ordered.Object{{"name", "Node Info"}, {"tagType", "Folder"}, {"seen", json.Number(fmt.Sprint(n.count))}}}
	return errors.Join(
		n.data.canaries.Put(path.Join(dir, "tags.json"), ordered.Pretty(tags)),
		n.data.canaries.Put(path.Join(dir, resource.UnaryFile), ordered.Pretty(ordered.Object{{"files", ordered.Array{"tags.json"}}, {"attributes", ordered.Object{}}})))
}

// fakePNG returns the signature of a PNG file, followed by text.
func fakePNG(text string) []byte { return []byte("\x89PNG\r\n\x1a\n " + text) }
