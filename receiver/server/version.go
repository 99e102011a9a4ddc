package server

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/verb"
)

// A version in the name of a tag: what comes last, after a v or not, behind whatever stands before it.
var (
	withV    = regexp.MustCompile(`^(?:(.*?)[-_/@])??[vV]([0-9].*)$`)
	withoutV = regexp.MustCompile(`^(?:(.*?)[-_/@])??([0-9].*)$`)
)

// version reads the version in a tag, and what stands before it: plant/v1.2.3 and plant-1.2.3 are versions of plant.
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

// below says why a tag is not known to be news: it has to be at least the current version, and none that was there before.
// Deliveries can be sent again by whoever has seen one, and hosts themselves tell of one version several times; so a tag
// counts only upwards, and what somebody went back from stays where it is.
func below(gs *v1alpha1.GatewaySync, tag string) string {
	of, v := version(tag)
	if v == nil {
		return fmt.Sprintf("the tag %.100s holds no version, so that it could be an older one: spec.webhook.allowDowngrade takes it all the same", tag)
	}
	past := past(gs)
	if current, at := current(gs, past, of); current != nil && v.LessThan(current) {
		return fmt.Sprintf("%.100s is a lower version than %.100s: spec.webhook.allowDowngrade takes it all the same", tag, at)
	}
	if slices.Contains(past, tag) {
		return fmt.Sprintf("%.100s was to run before, and something else was asked for since: ask for it by name to have it again, or set spec.webhook.allowDowngrade", tag)
	}
	return ""
}

// past are the tags and branches that ran, or were to run because they are followed.
func past(gs *v1alpha1.GatewaySync) []string {
	refs := verb.Followed(gs)
	if g := gs.Status.LastGood; g != nil {
		refs = append(refs, g.Ref)
	}
	if t := gs.Status.Target; t != nil {
		refs = append(refs, t.Ref)
	}
	for _, record := range gs.Status.History {
		refs = append(refs, record.Ref)
	}
	for i, ref := range refs {
		refs[i] = strings.TrimPrefix(ref, tags)
	}
	return slices.DeleteFunc(refs, v1alpha1.IsCommit)
}

// current is the version that is to run, or, where that is none (a branch, a commit of a rollback), the highest of the past.
func current(gs *v1alpha1.GatewaySync, past []string, of string) (highest *semver.Version, at string) {
	refs := past
	if wanted := strings.TrimPrefix(wanted(gs).Ref, tags); !v1alpha1.IsCommit(wanted) {
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
