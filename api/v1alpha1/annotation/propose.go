package annotation

import (
	"strings"
	"time"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
)

// maxPropose limits the annotation stoker.io/propose, in bytes.
const maxPropose = 320

// Propose returns the value of the annotation stoker.io/propose, or "" if it is too long or not one line of text.
func Propose(gs *v1alpha1.GatewaySync) string {
	value := gs.Annotations[v1alpha1.AnnotationPropose]
	if len(value) > maxPropose || !utf8.ValidString(value) || strings.ContainsFunc(value, isControl) {
		return ""
	}
	return value
}

// ProposeValue returns the value of the annotation stoker.io/propose for a gateway at a time.
func ProposeValue(gateway string, at time.Time) string {
	return gateway + " " + at.UTC().Format(time.RFC3339)
}

// ProposesFor reports whether a value of the annotation stoker.io/propose names this gateway.
func ProposesFor(value, gateway string) bool {
	name, _, _ := strings.Cut(value, " ")
	return name != "" && name == gateway
}
