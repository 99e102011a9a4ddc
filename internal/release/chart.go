package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// makeChart writes stoker-VERSION.tgz, the chart with the digests of the release's images, and adds it to the image layout. The digests are in
// files/digests.yaml and not in the values: a user who sets a tag must get that tag.
func (r *release) makeChart() error {
	dir := filepath.Join(r.root, "charts", "stoker")
	entries, err := readTree(dir, "stoker/", func(name string) bool {
		return !slices.Contains([]string{".tgz", ".orig"}, path.Ext(name)) && path.Base(name) != "kustomization.yaml" // as .helmignore says
	})
	if err != nil {
		return err
	}
	for i := range entries {
		if entries[i].name == "stoker/Chart.yaml" {
			if entries[i].content, err = r.chartMetadata(entries[i].content); err != nil {
				return err
			}
			r.chartConfig, err = yaml.YAMLToJSON(entries[i].content)
			if err != nil {
				return fmt.Errorf("Chart.yaml: %w", err)
			}
		}
	}
	digests, err := yaml.Marshal(r.digests)
	if err != nil {
		return err
	}
	entries = append(entries, entry{"stoker/files/digests.yaml", digests, 0o644})
	if err := writeArchive(r.path(r.chartFile()), entries, r.created); err != nil {
		return err
	}
	return r.addChart()
}

func (r *release) chartFile() string { return "stoker-" + r.version + ".tgz" }

// chartMetadata returns Chart.yaml with the version of the release, and with what catalogues of charts show.
func (r *release) chartMetadata(raw []byte) ([]byte, error) {
	version := regexp.MustCompile(`(?m)^(version|appVersion): .*$`)
	if n := len(version.FindAll(raw, -1)); n != 2 {
		return nil, fmt.Errorf("Chart.yaml: %d versions instead of 2", n)
	}
	raw = version.ReplaceAll(raw, []byte("$1: "+r.version))
	var images []map[string]string
	for _, p := range programs {
		images = append(images, map[string]string{"name": p.image, "image": r.registry + "/" + p.image + ":" + r.version + "@" + r.digests[p.image]})
	}
	list, err := yaml.Marshal(images)
	if err != nil {
		return nil, err
	}
	more, err := yaml.Marshal(map[string]any{"annotations": map[string]string{"artifacthub.io/images": string(list), "artifacthub.io/license": "Apache-2.0"}})
	if err != nil {
		return nil, err
	}
	return append(bytes.TrimRight(raw, "\n"), append([]byte("\n"), more...)...), nil
}

// writeManifests writes the kinds, and everything that kustomize/overlays/cluster installs, with the images of the release.
func (r *release) writeManifests() error {
	kinds, err := kustomize(r.root, "resources: [../kustomize/crd]\n")
	if err != nil {
		return fmt.Errorf("kustomize/crd: %w", err)
	}
	if err := os.WriteFile(r.path("crds.yaml"), kinds, 0o644); err != nil {
		return err
	}
	var images strings.Builder
	for _, p := range programs {
		fmt.Fprintf(&images, "  - name: %s/%s\n    digest: %s\n", r.registry, p.image, r.digests[p.image])
	}
	installed, err := kustomize(r.root, "resources: [../kustomize/overlays/cluster]\nimages:\n"+images.String())
	if err != nil {
		return fmt.Errorf("kustomize/overlays/cluster: %w", err)
	}
	return os.WriteFile(r.path("install.yaml"), installed, 0o644)
}

// kustomize renders a kustomization as if the checkout had it in the folder release. It writes nothing there.
func kustomize(root, kustomization string) ([]byte, error) {
	fs := filesys.MakeFsInMemory()
	for _, dir := range []string{"kustomize", "charts/stoker/files"} {
		entries, err := readTree(filepath.Join(root, filepath.FromSlash(dir)), "/"+dir+"/", nil)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if err := fs.WriteFile(e.name, e.content); err != nil {
				return nil, err
			}
		}
	}
	if err := fs.WriteFile("/release/kustomization.yaml", []byte(kustomization)); err != nil {
		return nil, err
	}
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone
	rendered, err := krusty.MakeKustomizer(options).Run(fs, "/release")
	if err != nil {
		return nil, err
	}
	return rendered.AsYaml()
}
