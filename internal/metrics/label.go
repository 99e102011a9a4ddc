package metrics

import "stoker.io/stoker/api/v1alpha1"

// Label values that are not reasons.
const (
	none = "none" // no reason
	// unknown replaces reasons that this version does not know, because reports of newer or malicious agents must not create
	// labels.
	unknown = "Unknown"
)

// label returns the label value of a reason.
func label(r v1alpha1.Reason) string {
	switch {
	case r == "":
		return none
	case !r.Known():
		return unknown
	}
	return string(r)
}
