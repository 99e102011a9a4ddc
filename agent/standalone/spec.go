package standalone

import (
	"context"
	"crypto/sha256"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/storage"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
)

// maxFile bounds the file of the GatewaySync. An object in Kubernetes has at most 1.5 MiB.
const maxFile = 1536 << 10

// spec is what was read last, and the last GatewaySync that is in force.
type spec struct {
	raw         []byte
	gs          *v1alpha1.GatewaySync
	effective   effective.Settings
	connections sync.Connections
	warnings    []string
	secrets     [sha256.Size]byte // connect.Fingerprint of the secrets that gs names
	err         error             // why the current content is not in force; nil if it is
	fresh       bool              // no loop.Order has been made from it yet
}

// Load reads the only GatewaySync of a YAML file, which may contain other documents. Without a name it gets that of the file,
// without a namespace "standalone". Load also returns warnings about unwise settings. The error is ProfilesInvalid, and names an
// invalid field.
func Load(name string) (*v1alpha1.GatewaySync, []string, error) {
	raw, err := file.Read(name, maxFile)
	if err != nil {
		return nil, nil, failure.New(v1alpha1.ReasonProfilesInvalid, "read the GatewaySync: %w", err)
	}
	return parse(name, raw)
}

func parse(file string, raw []byte) (*v1alpha1.GatewaySync, []string, error) {
	gs, err := decode.GatewaySync(raw)
	if err != nil {
		return nil, nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %w", file, err)
	}
	if gs.Name == "" {
		gs.Name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	}
	if gs.Namespace == "" {
		gs.Namespace = "standalone"
	}
	if errs := validation.GatewaySync(gs); len(errs) > 0 {
		return nil, nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %w", file, errs.ToAggregate())
	}
	return gs, validation.Warnings(gs), nil
}

// reload reads the file again. If it is invalid, reload logs that, and the last good content stays in force. After an error,
// reload evaluates the same content again.
func (l *Loop) reload() {
	raw, err := file.Read(l.File, maxFile)
	if err == nil && l.spec.err == nil && l.spec.raw != nil && string(raw) == string(l.spec.raw) {
		return
	}
	before := l.spec.err
	l.spec.err = nil
	if err != nil {
		l.spec.err = failure.New(v1alpha1.ReasonProfilesInvalid, "read the GatewaySync: %w", err)
	} else {
		l.spec.err = l.apply(raw)
	}
	if l.spec.err != nil && (before == nil || before.Error() != l.spec.err.Error()) {
		message := "GatewaySync not in force; using the last one"
		if l.spec.gs == nil {
			message = "GatewaySync not in force; nothing is synced"
		}
		l.Log.Error(message, "reason", failure.Reason(l.spec.err, v1alpha1.ReasonProfilesInvalid), "error", l.spec.err)
	}
}

// apply makes a file's content the spec in force, or returns why it cannot.
func (l *Loop) apply(raw []byte) error {
	l.spec.raw = raw
	gs, warnings, err := parse(l.File, raw)
	for _, w := range warnings {
		if !slices.Contains(l.spec.warnings, w) {
			l.Log.Warn("GatewaySync warning", "file", l.File, "warning", w)
		}
	}
	l.spec.warnings = warnings
	if err != nil {
		return err
	}
	eff, err := effective.Of(gs, l.Gateway.Profile, l.Gateway.Annotations)
	if err != nil {
		return err
	}
	eff.DryRun = eff.DryRun || l.DryRun
	connections, err := connect.New(&gs.Spec, connect.Gateway{URL: l.GatewayURL, Key: l.Key}, l.Secrets, l.Remote, l.Log)
	if err != nil {
		return err
	}
	if connections.Storage, err = storage.New(&gs.Spec, l.Secrets); err != nil {
		return errors.Join(err, connections.Remote.Close())
	}
	if old := l.spec.gs; old != nil {
		gs.Status.Request = old.Status.Request // package desiredref needs the history of requests
		_ = l.spec.connections.Remote.Close()  // only closes connections
	}
	l.spec.gs, l.spec.effective, l.spec.connections, l.spec.fresh = gs, eff, connections, true
	l.target.due, l.target.failures = time.Time{}, 0
	l.Log.Info("following", "gatewaysync", gs.Name, "gateway", l.Gateway.Name, "profile", eff.Profile, "repo", connect.RepoName(gs.Spec.Git))
	return nil
}

// checkPaused returns an error if the file, as it is now, pauses syncing. If its content is not valid, the last good content stays in force.
func (l *Loop) checkPaused(context.Context) error {
	raw, err := file.Read(l.File, maxFile)
	if err != nil || string(raw) == string(l.spec.raw) {
		return nil //nolint:nilerr // the last good content stays in force
	}
	gs, _, err := parse(l.File, raw)
	var eff effective.Settings
	if err == nil {
		eff, err = effective.Of(gs, l.Gateway.Profile, l.Gateway.Annotations)
	}
	if err == nil && eff.Paused {
		return sync.PausedError()
	}
	return nil
}

// checkSecrets has a new order made and the ref resolved at once if a secret has changed, which may end the last failure.
func (l *Loop) checkSecrets() {
	spec := &l.spec.gs.Spec
	if l.watcher != nil {
		l.watcher.Add(l.Secrets.FilesToWatch(spec)...)
	}
	fingerprint := connect.Fingerprint(spec, l.Secrets)
	if fingerprint == l.spec.secrets {
		return
	}
	if !l.spec.fresh {
		l.Log.Info("secrets changed", "gatewaysync", l.spec.gs.Name)
	}
	l.spec.secrets, l.spec.fresh = fingerprint, true
	l.target.due, l.target.failures = time.Time{}, 0
}

// facts returns the facts for templates. Without a pod, the gateway's name is also the pod's.
func (l *Loop) facts() plan.Facts {
	g := l.Gateway
	ordinal, _ := gatewaypod.Ordinal(g.Name, g.Labels)
	return plan.Facts{
		GatewayName: g.Name, PodName: g.Name, PodOrdinal: ordinal, Namespace: l.spec.gs.Namespace, CRName: l.spec.gs.Name,
		Labels: g.Labels,
	}
}
