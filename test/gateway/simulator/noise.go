package simulator

import (
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
