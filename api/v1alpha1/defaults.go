package v1alpha1

import (
	"cmp"
	"slices"
	"time"
)

// The defaults are markers of the types, which the API server applies, and constants, for objects that no API server has seen. A test in
// test/crd compares both. Those of SyncSettings are only in Go: the API server would set them in profiles, too, where they override
// sync.defaults.
const (
	DefaultPollingInterval  = time.Minute
	DefaultProgressDeadline = 10 * time.Minute
	MinDuration             = time.Second    // of intervals, deadlines and timeouts
	MaxDuration             = 24 * time.Hour // of intervals and deadlines
	DefaultRefreshInterval  = 10 * time.Minute
	DefaultConfigAccount    = "stoker-config"
	DefaultKubeConfigKey    = "value"
	DefaultGatewayPort      = 8088
	DefaultAPISecretKey     = "apiKey"
	DefaultTokenUsername    = "git"
	DefaultSyncPeriod       = 30 * time.Second
	MinSyncPeriod           = 5 * time.Second
	MaxSyncPeriod           = time.Hour
	DefaultProfile          = "default"
	DefaultTagProvider      = "default"
)

// BuiltinExcludes returns the patterns that are always excluded.
func BuiltinExcludes() []string { return []string{"**/.git/", "**/.gitkeep", "**/.resources/**"} }

// IsEnabled reports whether the lead polls git periodically.
func (p *PollingSpec) IsEnabled() bool { return p.Enabled == nil || *p.Enabled }

// IsEnabled reports whether the receiver serves this object.
func (w *WebhookSpec) IsEnabled() bool { return w.Enabled == nil || *w.Enabled }

// EffectivePort returns the port of the gateway's web server.
func (g *GatewaySpec) EffectivePort() int32 {
	if g.Port == nil {
		return DefaultGatewayPort
	}
	return *g.Port
}

// APIKey returns the reference to the Secret with the gateway's API key, or nil.
func (g *GatewaySpec) APIKey() *SecretKeyRef {
	if g.API == nil || g.API.SecretName == "" {
		return nil
	}
	return &SecretKeyRef{Name: g.API.SecretName, Key: cmp.Or(g.API.SecretKey, DefaultAPISecretKey)}
}

// ManagedKey reports whether the agent makes the gateway's API key.
func (g *GatewaySpec) ManagedKey() bool { return g.API != nil && g.API.Managed }

// User returns the user name for the token.
func (t *TokenAuth) User() string { return cmp.Or(t.Username, DefaultTokenUsername) }

// RequestableRefs returns the patterns of refs that a request may name. Without refs/, a pattern matches branches and tags.
func (g *GitSpec) RequestableRefs() []string { return requestable(g.AllowedRefs) }

// RequestableRefs is like that of GitSpec.
func (g *ConfigGit) RequestableRefs() []string { return requestable(g.AllowedRefs) }

func requestable(allowed []string) []string {
	if len(allowed) == 0 {
		return []string{"refs/heads/**", "refs/tags/**"}
	}
	return slices.Clone(allowed)
}

// Account returns the name of the ServiceAccount with whose rights objects are applied.
func (s *ConfigSyncSpec) Account() string { return cmp.Or(s.ServiceAccountName, DefaultConfigAccount) }

// Paths returns the path of the source, with its default, and the overlays.
func (s *ConfigSource) Paths() (path string, overlays []ConfigPath) {
	switch {
	case s.Git != nil:
		path, overlays = s.Git.Path, s.Git.Overlays
	case s.GatewaySync != nil:
		path, overlays = s.GatewaySync.Path, s.GatewaySync.Overlays
	}
	return cmp.Or(path, "."), overlays
}

// Ref returns the ref to resolve: revision, else branch, else HEAD.
func (g *ConfigGit) Ref() string { return cmp.Or(g.Revision, g.Branch, "HEAD") }

// Waits reports whether a run waits until the objects are healthy.
func (a *ConfigApply) Waits() bool { return a.Wait == nil || *a.Wait }

// Paused reports whether the ConfigSync is paused, by its spec or by the annotation.
func (cs *ConfigSync) Paused() bool {
	return cs.Spec.Paused || cs.Annotations[AnnotationPaused] == "true"
}

// WebhookSpec returns spec.webhook.
func (cs *ConfigSync) WebhookSpec() *WebhookSpec { return &cs.Spec.Webhook }

// OtherCluster ends the value of the annotation stoker.io/configsync of objects that a ConfigSync of another cluster applies. A ConfigSync of
// the same name in the cluster of the objects does not own them.
const OtherCluster = "@kubeConfig"

// Owner returns the value of the annotation stoker.io/configsync of the objects of this ConfigSync.
func (cs *ConfigSync) Owner() string {
	owner := cs.Namespace + "/" + cs.Name
	if cs.Spec.KubeConfig != nil {
		return owner + OtherCluster
	}
	return owner
}
