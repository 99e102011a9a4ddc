package simulator

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path"
	"slices"

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
// resource.json back with the actor "external", the time, and a matching signature. It also keeps a copy of each file's
// content in projects/.resources, named by its digest. The collection external is never written to.
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
