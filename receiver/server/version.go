package server

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/request"
)

// withV and withoutV match a tag that ends in a version, with an optional prefix before it.
var (
	withV    = regexp.MustCompile(`^(?:(.*?)[-_/@])??[vV]([0-9].*)$`)
	withoutV = regexp.MustCompile(`^(?:(.*?)[-_/@])??([0-9].*)$`)
)

// version returns the version in a tag and its prefix: plant/v1.2.3 and plant-1.2.3 are versions of plant.
func version(tag string) (prefix string, v *semver.Version) {
	for _, form := range []*regexp.Regexp{withV, withoutV} {
		if m := form.FindStringSubmatch(tag); m != nil {
			if v, err := semver.NewVersion(m[2]); err == nil {
				return m[1], v
			}
		}
	}
	return "", nil
}

// withoutPrerelease returns the tag of the version that a prerelease comes before, or the tag itself if it is not one.
func withoutPrerelease(tag string) string {
	if _, v := version(tag); v != nil && v.Prerelease() != "" {
		if i := strings.LastIndex(tag, "-"+v.Prerelease()); i >= 0 {
			return tag[:i]
		}
	}
	return tag
}

// isNewer reports whether a tag is a higher version than another tag of the same delivery.
func isNewer(tag, than string) bool {
	_, a := version(tag)
	_, b := version(than)
	return a != nil && (b == nil || a.GreaterThan(b))
}

// versionProblem returns why a tag is not a new version, or "". The tag must be at least the current version, and must not have been
// desired before, because deliveries can be replayed and hosts report one version several times. So a version that was rolled back
// does not return.
func versionProblem(o v1alpha1.Requestable, tag string) string {
	prefix, v := version(tag)
	if v == nil {
		return fmt.Sprintf("the tag %.100s contains no version, so it may be an older one: to allow it anyway, set spec.webhook.allowDowngrade", tag)
	}
	past := pastRefs(o)
	if current, at := currentVersion(o, past, prefix); current != nil && v.LessThan(current) {
		return fmt.Sprintf("%.100s is a lower version than %.100s: to allow it anyway, set spec.webhook.allowDowngrade", tag, at)
	}
	if slices.Contains(past, tag) {
		return fmt.Sprintf("%.100s was requested before, and another version since: request it by name to run it again, or set spec.webhook.allowDowngrade", tag)
	}
	return ""
}

// pastRefs returns the tags and branches that ran, or that were requested because they are followed.
func pastRefs(o v1alpha1.Requestable) []string {
	refs, standing := request.Followed(o), desiredref.RefStatusOf(o)
	if g := standing.LastGood; g != nil {
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
	for _, record := range standing.History {
		refs = append(refs, record.Ref)
	}
	for i, ref := range refs {
		refs[i] = strings.TrimPrefix(ref, tags)
	}
	return slices.DeleteFunc(refs, syntax.IsCommit)
}

// currentVersion returns the desired version with a prefix, and its ref. If the desired ref is not a version (a branch, or a commit of a
// rollback), it returns the highest past version.
func currentVersion(o v1alpha1.Requestable, past []string, prefix string) (highest *semver.Version, at string) {
	refs := past
	if wanted := strings.TrimPrefix(desiredRef(o).Ref, tags); !syntax.IsCommit(wanted) {
		if _, v := version(wanted); v != nil {
			refs = []string{wanted}
		}
	}
	for _, name := range refs {
		if p, v := version(name); v != nil && p == prefix && (highest == nil || v.GreaterThan(highest)) {
			highest, at = v, name
		}
	}
	return highest, at
}
