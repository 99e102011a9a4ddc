package server

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
)

// errOwnSecretNeeded means that a request needs the secret that the GatewaySync or ConfigSync names.
var errOwnSecretNeeded = errors.New("an install-wide secret is for pushes only: to request a ref or the status, use the secret of the object (spec.webhook.secretRef)")

const (
	branches = "refs/heads/"
	tags     = "refs/tags/"
)

// delivery is a call of a webhook. As a request.Decider, it decides again for the object that is written, so that two tags that arrive at
// the same time, even at different replicas, are compared one after the other.
type delivery struct {
	sender.Request
	ownSecret  bool
	deferrable bool // may be carried out late, because it never lowers the desired version
}

// newDelivery returns a delivery for an object. ownSecret: see decide.
func newDelivery(o v1alpha1.Requestable, r sender.Request, ownSecret bool) *delivery {
	return &delivery{Request: r, ownSecret: ownSecret, deferrable: !o.WebhookSpec().AllowDowngrade}
}

// maxJoinedRefs bounds the refs of a merged delivery.
const maxJoinedRefs = 1000

// Join merges two deliveries of the same sender about the same repository. A push of many tags causes one delivery for each,
// and only the highest version matters.
func (d *delivery) Join(other request.Decider) (request.Decider, bool) {
	o, ok := other.(*delivery)
	if !ok || d.ownSecret != o.ownSecret || d.deferrable != o.deferrable || d.Sender != o.Sender || d.Prerelease != o.Prerelease || !slices.Equal(d.Repositories, o.Repositories) || len(d.Refs)+len(o.Refs) > maxJoinedRefs {
		return nil, false
	}
	both := *d
	both.ID, both.Refs = "", slices.Concat(d.Refs, o.Refs)
	return &both, true
}

// Deferrable implements queue.Joiner. A followed tag must not be lost: polling does not find it, and few git hosts send it again.
func (d *delivery) Deferrable() bool { return d.deferrable }

// Decide implements request.Decider.
func (d *delivery) Decide(o v1alpha1.Requestable) (request.Request, string, error) {
	return decide(o, d.Request, d.ownSecret)
}

// decide returns the request that a delivery makes to an object, or why it makes none. ownSecret reports whether the sender used the
// object's own secret. decide is pure.
func decide(o v1alpha1.Requestable, r sender.Request, ownSecret bool) (req request.Request, skipped string, err error) {
	req = request.Request{By: r.Sender}
	if ownSecret { // an id counts only from these senders: it makes Kargo promotions with older ids superseded
		req.ID = r.ID
	}
	switch r.Kind {
	case sender.KindRequest:
		if r.Ref != "" && !ownSecret {
			return req, "", errOwnSecretNeeded
		}
		req.Ref, req.Commit, req.For = r.Ref, r.Commit, r.Description
		return req, "", nil
	case sender.KindPush:
		return decidePush(o, r, ownSecret, req)
	}
	return req, r.Why, nil
}

// decidePush decides about refs that were created or moved. It requests another ref only if the object follows tags.
func decidePush(o v1alpha1.Requestable, r sender.Request, ownSecret bool, req request.Request) (request.Request, string, error) {
	if fixed := desiredref.InputsOf(o).NotRequestable; fixed != "" {
		return req, fixed, nil
	}
	if !slices.ContainsFunc(r.Repositories, func(p sender.Repository) bool { return p.Is(desiredref.InputsOf(o).Repo) }) {
		return req, "it is not for the repository in " + repoField(o), nil
	}
	skipped := ""
	best := ""
	for _, full := range r.Refs {
		tag, isTag := strings.CutPrefix(full, tags)
		if !isTag || mayBeDesired(o, full) || len(o.WebhookSpec().FollowTags) == 0 {
			continue
		}
		if problem := tagProblem(o, tag, r.Prerelease, ownSecret); problem != "" {
			skipped = problem
		} else if best == "" || isNewer(tag, best) {
			best = tag
		}
	}
	if best != "" {
		req.Ref, req.Follows = best, true
		return req, "", nil
	}
	if slices.ContainsFunc(r.Refs, func(full string) bool { return mayBeDesired(o, full) }) {
		return req, "", nil
	}
	if skipped == "" {
		skipped = fmt.Sprintf("none of its refs is %s, which is the desired ref", desiredRef(o).Ref)
		if len(r.Refs) == 1 {
			skipped = fmt.Sprintf("%.100s is not %s, which is the desired ref", r.Refs[0], desiredRef(o).Ref)
		}
	}
	return req, skipped, nil
}

// repoField returns the field of the spec that has the repository, for messages.
func repoField(o v1alpha1.Requestable) string {
	if _, ok := o.(*v1alpha1.ConfigSync); ok {
		return "spec.source.git.repoURL"
	}
	return "spec.git.repo"
}

// desiredRef returns the desired ref. It ignores a request with an invalid ref, which the lead reports in the status.
func desiredRef(o v1alpha1.Requestable) desiredref.Desired {
	d, err := desiredref.Of(o, "")
	if err != nil {
		return desiredref.Desired{Ref: desiredref.InputsOf(o).Spec}
	}
	return d
}

// mayBeDesired reports whether a full ref name is the desired ref, or the spec's ref, if a new commit there would end the request in
// force.
func mayBeDesired(o v1alpha1.Requestable, full string) bool {
	d := desiredRef(o)
	return refMatches(d.Ref, full) || d.ResolveSpec && refMatches(desiredref.InputsOf(o).Spec, full)
}

// refMatches reports whether a ref in any form can mean a full ref name. A commit never does, because it does not move.
func refMatches(ref, full string) bool {
	switch {
	case syntax.IsCommit(ref):
		return false
	case ref == "HEAD": // a delivery does not always say which branch that is
		return strings.HasPrefix(full, branches)
	case strings.HasPrefix(ref, "refs/"):
		return ref == full
	}
	return full == branches+ref || full == tags+ref
}

// tagProblem returns why a tag does not become the requested ref, or "". marked means that the host calls its release a prerelease.
func tagProblem(o v1alpha1.Requestable, tag string, marked, ownSecret bool) string {
	w := o.WebhookSpec()
	matches, wantsPrerelease, final := false, false, withoutPrerelease(tag)
	for _, pattern := range w.FollowTags {
		if validation.PatternProblem(pattern) == "" && doublestar.MatchUnvalidated(pattern, tag) {
			matches, wantsPrerelease = true, wantsPrerelease || final != tag && !doublestar.MatchUnvalidated(pattern, final)
		}
	}
	switch {
	case !matches:
		return fmt.Sprintf("spec.webhook.followTags does not match the tag %.100s", tag)
	case (marked || final != tag) && !wantsPrerelease:
		return fmt.Sprintf("%.100s is a prerelease: to follow it, add a pattern that only prereleases match to spec.webhook.followTags, such as v*-*", tag)
	case !ownSecret:
		return errOwnSecretNeeded.Error()
	case syntax.IsCommit(tag), strings.HasPrefix(tag, "refs/"), tag == "HEAD", tag == "":
		return fmt.Sprintf("the tag name %.100s is ambiguous", tag)
	case w.AllowDowngrade:
		return ""
	}
	return versionProblem(o, tag)
}

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

// pastRefs returns the tags and branches that ran, that are the target, or that were requested because they are followed.
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
// rollback), it returns the highest past version. It returns nil if the desired version has another prefix.
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
