package main

import (
	"regexp"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
)

// project is where the documents are for who has a binary or an image and no checkout.
const project = "https://github.com/stoker-io/stoker/blob/"

var released = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)$`)

// manual is the address of a document, such as docs/troubleshooting.md#paused, as it was when this version was made.
func manual(document string) string {
	if m := released.FindStringSubmatch(version); m != nil {
		return project + "v" + m[1] + "/" + document
	}
	return project + "main/" + document
}

// help is where to read on about a reason.
func help(reason v1alpha1.Reason) string {
	for _, r := range v1alpha1.Reasons {
		if r.Reason == reason {
			return "\nWhat to do: " + manual("docs/troubleshooting.md#"+strings.ToLower(string(reason)))
		}
	}
	return ""
}
