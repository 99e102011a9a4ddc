package configsync

import (
	"context"
	"maps"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	maxVars      = 512       // variables
	maxVarBytes  = 64 << 10  // bytes of one value
	maxVarsBytes = 256 << 10 // bytes of all values
)

// variables are the template variables of the spec, and of the Secrets and ConfigMaps that it names.
type variables struct {
	all, public map[string]string // public has no values of Secrets
	secrets     []string          // the values of Secrets
	tainted     bool              // a Secret is among the sources
}

// variables reads the variables of a ConfigSync. Later entries of varsFrom override earlier ones, and spec.render.vars overrides all.
func (e *Engine) variables(ctx context.Context, cs *v1alpha1.ConfigSync) (variables, error) {
	v := variables{all: map[string]string{}, public: map[string]string{}}
	for _, from := range cs.Spec.Render.VarsFrom {
		if err := e.varsFrom(ctx, cs, from, &v); err != nil {
			return v, err
		}
	}
	for name, value := range cs.Spec.Render.Vars {
		v.all[name], v.public[name] = string(value), string(value)
	}
	size := 0
	for _, name := range slices.Sorted(maps.Keys(v.all)) {
		if size += len(v.all[name]); len(v.all[name]) > maxVarBytes || size > maxVarsBytes || len(v.all) > maxVars {
			return v, failure.New(v1alpha1.ReasonLimitExceeded, "spec.render: at most %d variables of %d bytes each and %d in total are allowed", maxVars, maxVarBytes, maxVarsBytes)
		}
	}
	return v, nil
}

// varsFrom adds the variables of one object.
func (e *Engine) varsFrom(ctx context.Context, cs *v1alpha1.ConfigSync, from v1alpha1.ConfigVars, v *variables) error {
	var err error
	data := map[string]string{}
	if from.SecretRef != nil {
		v.tainted = true
		var values map[string][]byte
		values, err = e.secretReader(cs)(ctx, from.SecretRef.Name)
		for name, value := range values {
			data[name] = strings.TrimRight(string(value), "\r\n")
			v.secrets = append(v.secrets, data[name])
			delete(v.public, name)
		}
	} else {
		if data, err = e.configMap(ctx, cs, from.ConfigMapRef.Name); err == nil {
			maps.Copy(v.public, data)
		}
	}
	if from.Optional && failure.Is(err, v1alpha1.ReasonSourceMissing) {
		return nil
	}
	maps.Copy(v.all, data)
	return err
}
