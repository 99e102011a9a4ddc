// Package create computes a GatewaySync from the tree of a repository: which folders are projects and configuration, which of them
// all gateways share, and which belong to one. It also makes the Secrets that a GatewaySync names. It reads git objects only, and
// changes nothing.
//
// The steps are: read lists the tree, find recognizes Ignition's folders in it, arrange assigns them to profiles, inspect finds what a user
// should know, and write prints the object. The object that is returned is decoded from the printed text, so that both are the same.
package create

import (
	"errors"
	"fmt"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/validation"
)

// Source has the objects of one commit.
type Source interface {
	plan.Objects
	// Root returns the tree of the commit.
	Root() plan.ID
	// Prefetch fetches blobs that will be read, all at once.
	Prefetch(ids []plan.ID) error
}

// Input describes the GatewaySync to create.
type Input struct {
	Name      string
	Namespace string           // "" to leave it out
	Git       v1alpha1.GitSpec // as it is written into the spec
	// RepoNote and AuthNote are comments on spec.git.repo and spec.git.auth; "" for none.
	RepoNote, AuthNote string
	// Project is the name on the gateway of a project that is the root of the repository or Folder.
	Project string
	Source  Source
	Folder  string // the only folder of the commit that is read; "" for all
}

// Result is a GatewaySync, and what a user should know about it.
type Result struct {
	GatewaySync *v1alpha1.GatewaySync
	YAML        []byte // of the GatewaySync, with comments
	Pods        []Pods // by profile
	Found       []Folder
	LeftOut     []string // paths that no gateway gets
	Warnings    []string
}

// Pods are the pods of a profile, with the annotations that they need, as lines of YAML.
type Pods struct {
	Profile     string
	Annotations []string
}

// Folder is a folder of the repository that gateways get.
type Folder struct {
	Source, Content string
}

// GatewaySync returns the GatewaySync for a tree. It fails if the tree has nothing of Ignition.
func GatewaySync(in Input) (*Result, error) {
	top, err := read(in.Source, in.Folder)
	if err != nil {
		return nil, err
	}
	f := &finder{source: in.Source, project: in.Project}
	bases, err := f.find(top)
	if err != nil {
		return nil, err
	}
	if len(bases) == 0 {
		return nil, nothingFound(top)
	}
	p, err := arrange(in.Source, bases)
	if err != nil {
		return nil, err
	}
	p.warnings = append(f.warnings, p.warnings...)
	if err := p.inspect(in.Source, top); err != nil {
		return nil, err
	}
	r := &Result{YAML: write(in, p), Pods: p.pods(in.Name), Found: p.found(), LeftOut: leftOut(top, p), Warnings: p.warnings}
	if r.GatewaySync, err = decode.GatewaySync(r.YAML); err != nil {
		return nil, fmt.Errorf("the written GatewaySync cannot be read again: %w", err)
	}
	if errs := validation.GatewaySync(r.GatewaySync); len(errs) > 0 {
		return nil, fmt.Errorf("the GatewaySync for this tree is not valid: %w", errs.ToAggregate())
	}
	return r, nil
}

// nothingFound returns the error for a tree without anything of Ignition.
func nothingFound(top *dir) error {
	names := top.names()
	if len(names) == 0 {
		return errors.New("the tree has no files: push the gateway's folders projects and config first")
	}
	return fmt.Errorf("nothing of Ignition was found: a project is a folder with a project.json, and configuration is a folder "+
		"config/resources with collections such as core. The tree has %s", plan.Enumerate(names, 10))
}
