// Package annotation reads and writes the annotations with which users request something of a GatewaySync without a change of its spec:
// an approval, a retry, a restored snapshot. Package desiredref evaluates those that request a ref.
package annotation

import (
	"strings"
	"unicode"

	"stoker.io/stoker/api/v1alpha1"
)

// ForceSync returns the value of the annotation stoker.io/force-sync. A new value makes the agents verify every managed file by its
// content, repair it, and request a scan.
func ForceSync(gs *v1alpha1.GatewaySync) string { return gs.Annotations[v1alpha1.AnnotationForceSync] }

// maxLine limits the annotation stoker.io/requested-for, in bytes.
const maxLine = 512

// Line returns text as a value of stoker.io/requested-for: one printable line of at most 512 bytes.
func Line(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text[:min(len(text), 2*maxLine)], ""), func(r rune) bool { return !unicode.IsGraphic(r) || r == ' ' }), " ")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine-len("…")], "") + "…"
	}
	return text
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
