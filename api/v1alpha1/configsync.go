package v1alpha1

import (
	"cmp"
	"slices"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

// Owner returns the value of the annotation stoker.io/configsync of the objects of this ConfigSync.
func (cs *ConfigSync) Owner() string { return cs.Namespace + "/" + cs.Name }

// TruncateMessage shortens a message to the 1024 characters that a field of the status may have.
func TruncateMessage(s string) string {
	const maxLength = 1024
	if utf8.RuneCountInString(s) <= maxLength {
		return s
	}
	return string([]rune(s)[:maxLength-1]) + "…"
}

// maxConditions is how many conditions the API server admits in a status.
const maxConditions = 16

// FitConditions removes conditions of other writers if there are so many that those of the types in own would not fit into a status. It
// changes the list.
func FitConditions(list []metav1.Condition, own []string) []metav1.Condition {
	others := 0
	return slices.DeleteFunc(list, func(c metav1.Condition) bool {
		if slices.Contains(own, c.Type) {
			return false
		}
		others++
		return others > maxConditions-len(own)
	})
}
