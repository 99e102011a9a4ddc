package main

import (
	"path/filepath"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// kustomize renders a kustomization that lies in a folder of its own in the checkout. Nothing is written there.
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
