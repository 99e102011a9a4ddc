// Command configmaps generates patches of Argo CD's ConfigMaps from the scripts in resource_customizations. The chart and
// kustomize/components/argocd read them. `go generate ./hooks/argocd/...` runs it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run . ../resource_customizations/stoker.io ../../../charts/stoker/files/argocd

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "configmaps:", err)
		os.Exit(1)
	}
}

// run reads the scripts in the first folder, and writes the patches to the second.
func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want two folders, the scripts and the output; got %d", len(args))
	}
	patches, err := render(os.DirFS(args[0]))
	if err != nil {
		return err
	}
	for name, text := range patches {
		if err := os.WriteFile(filepath.Join(args[1], name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
