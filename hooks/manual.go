package main

import (
	"regexp"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
)

// project is the address of the documentation, for users without a checkout.
const project = "https://github.com/stoker-io/stoker/blob/"

var released = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)$`)

// manual returns the address of a document, such as docs/troubleshooting.md#paused, in the version of this binary.
func manual(document string) string {
	if m := released.FindStringSubmatch(version); m != nil {
		return project + "v" + m[1] + "/" + document
	}
	return project + "main/" + document
}

// help returns a line with the address of the documentation of a reason.
func help(reason v1alpha1.Reason) string {
	for _, r := range v1alpha1.Reasons {
		if r.Reason == reason {
			return "\nWhat to do: " + manual("docs/troubleshooting.md#"+strings.ToLower(string(reason)))
		}
	}
	return ""
}
