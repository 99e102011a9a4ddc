// Package render makes the bytes of a file out of what git has: by Go templates over the facts of a gateway, and by
// patches of single JSON values. It is pure, and bounded: what it is given comes from a repository that may be hostile,
// so that no template can run for long, take much memory, or learn anything but the facts.
package render

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Facts is what a template can ask for.
type Facts struct {
	GatewayName string
	PodName     string
	// PodOrdinal is the index of a StatefulSet's pod; 0 for any other.
	PodOrdinal     int
	Namespace      string
	CRName         string
	Labels         map[string]string
	DeploymentMode string
	TagProvider    string
	// Vars are also found at the top level, under names that are none of these.
	Vars map[string]string
	// Ref is the desired ref as it was asked for, Commit the full id that it stood at.
	Ref, Commit string
	// Unlabelled says that the pod's labels and annotations are not known: a template that asks for what they tell fails with
	// ErrUnread. An agent knows them.
	Unlabelled bool
}

// ErrUnread means that a template asks for a fact that is not known.
var ErrUnread = errors.New("the labels and annotations of the pod are not known")

// unlabelled are facts of a pod that was not read: text/template asks a method before it looks for a key.
type unlabelled map[string]any

// Labels fails a template that asks for them.
func (unlabelled) Labels() (map[string]string, error) { return nil, ErrUnread }

// PodOrdinal is known by a label.
func (unlabelled) PodOrdinal() (int, error) { return 0, ErrUnread }

// DeploymentMode is known by an annotation, and without it there is none. (A tag provider has a default, which is meant.)
func (unlabelled) DeploymentMode() (string, error) { return "", ErrUnread }

// ofCommit are the names of the facts that change with every commit.
var ofCommit = []string{"Ref", "Commit"}

// data is what a template is executed on. It holds plain values only, none that has methods; itself it has those of unlabelled at
// most, which only fail.
func (f *Facts) data() any {
	if f.Unlabelled {
		return unlabelled(f.values())
	}
	return f.values()
}

func (f *Facts) values() map[string]any {
	d := make(map[string]any, len(f.Vars)+11)
	for name, v := range f.Vars {
		d[name] = v
	}
	maps.Copy(d, map[string]any{
		"GatewayName": f.GatewayName, "PodName": f.PodName, "PodOrdinal": f.PodOrdinal, "Namespace": f.Namespace,
		"CRName": f.CRName, "Labels": f.Labels, "DeploymentMode": f.DeploymentMode, "TagProvider": f.TagProvider,
		"Vars": f.Vars, "Ref": f.Ref, "Commit": f.Commit,
	})
	return d
}

// Fingerprint tells facts apart that can lead to different bytes; ref and commit are not part of it.
func (f *Facts) Fingerprint() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %d %q %q %q %q\n", f.GatewayName, f.PodName, f.PodOrdinal, f.Namespace, f.CRName, f.DeploymentMode, f.TagProvider)
	for _, m := range []map[string]string{f.Labels, f.Vars} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(h, "%q=%q ", key, m[key])
		}
		fmt.Fprintln(h)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}
