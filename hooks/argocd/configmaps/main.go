// Command configmaps generates patches of Argo CD's ConfigMaps from the scripts in resource_customizations, for the chart and for
// kustomize. `go generate ./hooks/argocd/...` runs it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run . ../resource_customizations/stoker.io ../../../charts/stoker/files/argocd ../../../kustomize/components/argocd

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "configmaps:", err)
		os.Exit(1)
	}
}

// run reads the scripts in the first folder. It writes the patches to the second folder, the chart's, and to the third, that of
// kustomize.
func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want three folders: the scripts, the chart's and kustomize's; got %d", len(args))
	}
	patches, err := render(os.DirFS(args[0]))
	if err != nil {
		return err
	}
	for _, dir := range args[1:] {
		if err := write(dir, patches); err != nil {
			return err
		}
	}
	return write(args[2], map[string]string{"kustomization.yaml": component})
}

func write(dir string, files map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
