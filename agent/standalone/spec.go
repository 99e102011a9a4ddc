// Package standalone drives syncs from a GatewaySync in a file, without Kubernetes: for a gateway on bare metal, for
// development, and for trying things. The file is the desired state, as the object is in a cluster.
package standalone

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

const (
	// maxFile bounds the GatewaySync's file; an object in Kubernetes is at most 1.5 MiB.
	maxFile = 1536 << 10
	// maxSecret bounds a secret's file, as Kubernetes bounds a Secret.
	maxSecret = 1 << 20
)

// Load reads the one GatewaySync of a YAML file, which may hold other documents too. Warnings are about what is left out
// or not wise. The error names the field that is wrong.
func Load(file string) (*v1alpha1.GatewaySync, []string, error) {
	raw, err := readBounded(file, maxFile)
	if err != nil {
		return nil, nil, failure.New(v1alpha1.ReasonProfilesInvalid, "read the GatewaySync: %w", err)
	}
	return decode(file, raw)
}

func decode(file string, raw []byte) (*v1alpha1.GatewaySync, []string, error) {
	gs, warnings, err := v1alpha1.Decode(raw)
	if err != nil {
		return nil, nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %w", file, err)
	}
	if gs.Name == "" {
		gs.Name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	}
	if gs.Namespace == "" {
		gs.Namespace = "standalone"
	}
	if errs := v1alpha1.Validate(gs); len(errs) > 0 {
		return nil, warnings, failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %w", file, errs.ToAggregate())
	}
	return gs, append(warnings, v1alpha1.Warnings(gs)...), nil
}

// facts is what templates can ask for of the gateway: what its pod would say of itself. Without one, the gateway's name
// stands for the pod's.
func (l *Loop) facts() plan.Facts {
	g := l.Gateway
	ordinal, _ := v1alpha1.PodOrdinal(g.Name, g.Labels)
	return plan.Facts{
		GatewayName: g.Name, PodName: g.Name, PodOrdinal: ordinal, Namespace: l.spec.gs.Namespace, CRName: l.spec.gs.Name,
		Labels: g.Labels,
	}
}

// Secrets finds the files that hold the keys of the secrets which a GatewaySync names.
type Secrets struct {
	// Files maps NAME/KEY to a file.
	Files map[string]string
	// Dir holds NAME/KEY for what is not in Files.
	Dir string
}

// Read returns the value of a key. It is read anew each time, so that a rotated secret counts at once; white space at
// its end is not part of it.
func (s Secrets) Read(name, key string) (secret.String, error) {
	file, ok := s.Files[name+"/"+key]
	if !ok {
		file = filepath.Join(s.Dir, name, key)
	}
	b, err := readBounded(file, maxSecret)
	if err != nil {
		return secret.String{}, fmt.Errorf("secret %s/%s: %w; give --secret %s/%s=FILE", name, key, err, name, key)
	}
	v := strings.TrimRight(string(b), " \t\r\n")
	if v == "" {
		return secret.String{}, fmt.Errorf("secret %s/%s: %s is empty", name, key, file)
	}
	return secret.New(v), nil
}

func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", file, limit)
	}
	return b, nil
}
