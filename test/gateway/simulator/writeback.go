package simulator

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path"
	"slices"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// signExternal does what a projects scan does to resources whose content differs from the signed one: it writes
// resource.json back with the actor "external", the time, and a matching signature. It also keeps a copy of each file's
// content in projects/.resources, named by its digest. The collection external is never written to.
func (g *Gateway) signExternal(t *resource.Tree, blobs bool) {
	for _, name := range slices.Sorted(maps.Keys(t.Resources)) {
		r := t.Resources[name]
		dir := path.Join(t.Dir, name)
		if blobs && !g.opts.NoBlobs {
			if err := g.storeBlobs(dir, r); err != nil {
				g.logs.add(levelWarn, "ProjectResources", "could not keep a copy of "+dir+": "+err.Error())
			}
		}
		if r.Unary || g.opts.NoWriteBack {
			continue
		}
		if signature, err := r.Signature(); err != nil || signature == r.StoredSignature() {
			continue
		}
		next, raw, err := r.Sign("external", g.now())
		if err == nil {
			err = g.canaries.Replace(path.Join(dir, resource.File), raw)
		}
		if err != nil {
			g.logs.add(levelError, "ProjectResources", "could not sign "+dir+": "+err.Error())
			continue
		}
		t.Resources[name] = next
		g.logs.add(levelInfo, "ProjectResources", "Setting LastModification to external: "+dir)
	}
}

func (g *Gateway) storeBlobs(dir string, r *resource.Resource) error {
	for file, digest := range r.Digests {
		blob := path.Join(datadir.BlobDir, digest)
		if datadir.Exists(g.root, blob) {
			continue
		}
		raw, err := datadir.Read(g.root, path.Join(dir, file))
		if err != nil {
			return err
		}
		if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != digest {
			continue // the file has changed since it was loaded; the next scan reads it
		}
		if err := g.canaries.Write(blob, raw); err != nil {
			return err
		}
	}
	return nil
}
