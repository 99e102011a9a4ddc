package v1alpha1

import "cmp"

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
