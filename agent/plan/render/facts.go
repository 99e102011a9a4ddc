// Package render turns the bytes that git has for a file into the bytes that the gateway gets: it executes Go templates
// over the facts of a gateway, and patches single JSON values. It is pure and bounded. Its input comes from a
// repository that may be hostile, so no template can run long, take much memory, or learn anything but the facts.
package render

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Facts are the values that templates can use.
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
	// Vars are also available at the top level, except under the names of other facts.
	Vars map[string]string
	// Ref is the desired ref as requested, Commit the full id that it resolved to.
	Ref, Commit string
	// Unlabelled reports that the pod's labels and annotations are unknown. A template that uses a fact derived from
	// them fails with ErrUnread. An agent always knows them; a command that renders without a pod does not.
	Unlabelled bool
}

// ErrUnread reports that a template uses a fact that is not known.
var ErrUnread = errors.New("the labels and annotations of the pod are not known")

// unlabelled are the facts of a pod whose labels are unknown. text/template looks for a method before a map key, so these
// methods shadow the facts.
type unlabelled map[string]any

// Labels fails a template that uses them.
func (unlabelled) Labels() (map[string]string, error) { return nil, ErrUnread }

// PodOrdinal fails because a label tells the ordinal.
func (unlabelled) PodOrdinal() (int, error) { return 0, ErrUnread }

// DeploymentMode fails because an annotation sets it and it has no default. (The tag provider has one.)
func (unlabelled) DeploymentMode() (string, error) { return "", ErrUnread }

// commitFacts are the facts that change with every commit.
var commitFacts = []string{"Ref", "Commit"}

// data returns the value that a template is executed on. Its values are plain and have no methods, and the methods of unlabelled only
// return ErrUnread.
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

// Fingerprint returns a hash of the facts that rendered bytes can depend on, without Ref and Commit.
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
