package kustomize

import (
	"bytes"
	"encoding/gob"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// Name is the name of Run for builder.Main.
const Name = "kustomize"

// Run builds the kustomization of a folder in a child: it decodes the name of the folder, and the files. It returns the objects as JSON
// documents.
func Run(in *gob.Decoder) ([]byte, error) {
	var dir string
	var files []builder.InputFile
	if err := in.Decode(&dir); err != nil {
		return nil, err
	}
	if err := in.Decode(&files); err != nil {
		return nil, err
	}
	memory := filesys.MakeFsInMemory()
	for _, f := range files {
		if err := memory.WriteFile(f.Name, f.Content); err != nil {
			return nil, err
		}
	}
	objects, err := krusty.MakeKustomizer(&krusty.Options{
		Reorder: krusty.ReorderOptionNone, LoadRestrictions: types.LoadRestrictionsRootOnly, PluginConfig: types.DisabledPluginConfig(),
	}).Run(memory, dir)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, o := range objects.Resources() {
		data, err := o.MarshalJSON()
		if err != nil {
			return nil, err
		}
		if out.Len()+len(data) > manifest.MaxBytes {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the objects have more than %d bytes; split it over several ConfigSyncs", manifest.MaxBytes)
		}
		out.WriteString("---\n")
		out.Write(data)
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}
