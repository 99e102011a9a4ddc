// Package specfile reads a GatewaySync or a ConfigSync from a file or from stdin. It does not validate the spec.
package specfile

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
)

// maxSize bounds a file with one object, in bytes. etcd stores objects of at most 1.5 MiB.
const maxSize = 1536 << 10

// GatewaySync reads a GatewaySync from a file, or from stdin if name is "-". A GatewaySync without a name gets that of
// the file.
func GatewaySync(name string, stdin io.Reader) (*v1alpha1.GatewaySync, error) {
	raw, err := read(name, stdin)
	if err != nil {
		return nil, err
	}
	gs, err := decode.GatewaySync(raw)
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %w", name, err)
	}
	if gs.Name == "" {
		gs.Name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	}
	return gs, nil
}

// ConfigSync reads a ConfigSync from a file, or from stdin if name is "-".
func ConfigSync(name string, stdin io.Reader) (*v1alpha1.ConfigSync, error) {
	raw, err := read(name, stdin)
	if err != nil {
		return nil, err
	}
	cs, err := decode.ConfigSync(raw)
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s: %w", name, err)
	}
	return cs, nil
}

// read returns the content of a file, or of stdin if name is "-". It fails if there are more than maxSize bytes.
func read(name string, stdin io.Reader) ([]byte, error) {
	if name != "-" {
		return file.Read(name, maxSize)
	}
	raw, err := bound.ReadAll(stdin, maxSize)
	if errors.Is(err, bound.ErrTooLarge) {
		err = fmt.Errorf("stdin has more than %d bytes", maxSize)
	}
	return raw, err
}
