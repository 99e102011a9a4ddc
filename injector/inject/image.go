package inject

import (
	"fmt"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/validation"
)

// image returns the agent's image: that of the pod's annotation if it is allowed, otherwise that of the GatewaySync merged over
// the default. A GatewaySync may name any version of the default repository. Another repository must be allowed, because
// otherwise anyone who can edit a GatewaySync could choose the program that gets the agent's token and Secrets. A digest takes
// precedence over a tag, but a tag of the GatewaySync takes precedence over a default digest. An invalid reference is ignored,
// because an init container that cannot be pulled keeps the gateway from starting.
func (s *sidecar) image() string {
	if asked, ok := gatewaypod.Annotation(s.pod.Annotations, v1alpha1.AnnotationAgentImage); ok && asked != "" {
		why := "does not match --allow-agent-image of the injector"
		switch {
		case !validation.IsImage(asked):
			why = "is not a valid image"
		case s.admits(asked):
			return asked
		}
		s.warn("annotation %s is ignored: image %.80q %s", v1alpha1.AnnotationAgentImage, asked, why)
	}
	want := s.gs.Spec.Agent.Image
	image := s.defaults.Image
	if want.Repository != "" {
		image.Repository = want.Repository
	}
	if want.Tag != "" || want.Digest != "" {
		image.Tag, image.Digest = want.Tag, want.Digest
	}
	composed := reference(image)
	if !validation.IsImage(composed) {
		s.warn("spec.agent.image of GatewaySync %s is ignored: %.200q is not a valid image; put the tag in tag and the digest in digest", s.gs.Name, composed)
		return reference(s.defaults.Image)
	}
	if image.Repository != s.defaults.Image.Repository && !s.admits(composed) {
		s.warn("spec.agent.image of GatewaySync %s is ignored: image %.200q does not match --allow-agent-image of the injector", s.gs.Name, composed)
		return reference(s.defaults.Image)
	}
	return composed
}

func reference(image v1alpha1.AgentImage) string {
	if image.Digest != "" {
		return image.Repository + "@" + image.Digest
	}
	return image.Repository + ":" + image.Tag
}

// admits reports whether a valid image matches an allowed prefix at a boundary: acme.example/agent matches acme.example/agent:1
// but not acme.example/agent-of-another:1.
func (s *sidecar) admits(image string) bool {
	for _, prefix := range s.defaults.AllowedImages {
		rest, ok := strings.CutPrefix(image, prefix)
		if prefix != "" && ok && (rest == "" || strings.ContainsAny(prefix[len(prefix)-1:], "/:@") || strings.ContainsAny(rest[:1], "/:@")) {
			return true
		}
	}
	return false
}

func (s *sidecar) warn(format string, args ...any) {
	s.warnings = append(s.warnings, fmt.Sprintf(format, args...))
}
