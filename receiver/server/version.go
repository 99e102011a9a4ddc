package server

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
)

// withV and withoutV match a tag that ends in a version, with an optional prefix before it.
var (
	withV    = regexp.MustCompile(`^(?:(.*?)[-_/@])??[vV]([0-9].*)$`)
	withoutV = regexp.MustCompile(`^(?:(.*?)[-_/@])??([0-9].*)$`)
)

// version returns the version in a tag and its prefix: plant/v1.2.3 and plant-1.2.3 are versions of plant.
func version(tag string) (of string, v *semver.Version) {
	for _, form := range []*regexp.Regexp{withV, withoutV} {
		if m := form.FindStringSubmatch(tag); m != nil {
			if v, err := semver.NewVersion(m[2]); err == nil {
				return m[1], v
			}
		}
	}
	return "", nil
}

// newer reports whether a tag is a higher version than another one of the same delivery.
func newer(tag, than string) bool {
	_, a := version(tag)
	_, b := version(than)
	return a != nil && (b == nil || a.GreaterThan(b))
}

// below returns why a tag is rejected as not new: it must be at least the current version, and must not have been desired
// before. Anyone who has seen a delivery can replay it, and hosts report one version several times. So tags only move upwards,
// and a version that was rolled back stays away.
func below(o v1alpha1.Requestable, tag string) string {
	of, v := version(tag)
	if v == nil {
		return fmt.Sprintf("the tag %.100s holds no version, so that it could be an older one: spec.webhook.allowDowngrade takes it all the same", tag)
	}
	past := past(o)
	if current, at := current(o, past, of); current != nil && v.LessThan(current) {
		return fmt.Sprintf("%.100s is a lower version than %.100s: spec.webhook.allowDowngrade takes it all the same", tag, at)
	}
	if slices.Contains(past, tag) {
		return fmt.Sprintf("%.100s was requested before, and another version since: request it by name to run it again, or set spec.webhook.allowDowngrade", tag)
	}
	return ""
}

// past returns the tags and branches that ran, or that were requested because they are followed.
func past(o v1alpha1.Requestable) []string {
	refs, is := request.Followed(o), o.Standing()
	if g := is.LastGood; g != nil {
		refs = append(refs, g.Ref)
	}
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		if t := o.Status.Target; t != nil {
			refs = append(refs, t.Ref)
		}
	case *v1alpha1.ConfigSync:
		refs = append(refs, o.Status.SourceRef)
	}
	for _, record := range is.History {
		refs = append(refs, record.Ref)
	}
	for i, ref := range refs {
		refs[i] = strings.TrimPrefix(ref, tags)
	}
	return slices.DeleteFunc(refs, v1alpha1.IsCommit)
}

// current returns the desired version or, if the desired ref has none (a branch, or a commit of a rollback), the highest past
// one.
func current(o v1alpha1.Requestable, past []string, of string) (highest *semver.Version, at string) {
	refs := past
	if wanted := strings.TrimPrefix(wanted(o).Ref, tags); !v1alpha1.IsCommit(wanted) {
		if _, v := version(wanted); v != nil {
			refs = []string{wanted}
		}
	}
	for _, name := range refs {
		if its, v := version(name); v != nil && its == of && (highest == nil || v.GreaterThan(highest)) {
			highest, at = v, name
		}
	}
	return highest, at
}
