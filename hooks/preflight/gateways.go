package preflight

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/internal/failure"
)

// Gateway is an existing or expected gateway.
type Gateway struct {
	Name string
	// Pod is the name of its pod; "" for that of the gateway.
	Pod string
	// Profile is that of the pod's annotation; "" for the default one.
	Profile             string
	Labels, Annotations map[string]string
	// Unread is why the labels and annotations of the pod are unknown; "" if they are known.
	Unread string
	// madeUp marks a stand-in for the future gateways of a profile.
	madeUp bool
}

// standIn is the name of stand-in gateways.
const standIn = "gateway"

// targets returns the gateways to plan for. If the spec is not sound, it adds no stand-ins, because Validate has already
// reported what is wrong with their profiles.
func (l *look) targets(sound bool) []Gateway {
	profiles := l.GatewaySync.Spec.Sync.Profiles
	var list []Gateway
	seen := map[string]bool{}
	for _, g := range l.Gateways {
		profile := g.Profile
		if profile == "" {
			profile = g.Annotations[v1alpha1.AnnotationProfile]
		}
		if profile == "" && len(profiles) > 0 {
			profile = v1alpha1.DefaultProfile
		}
		if !l.narrowed(profile) {
			continue
		}
		if len(profiles) == 0 && g.Unread != "" {
			l.warn("%s: not checked, because the annotations of its pod name its folder: %s", g.Name, g.Unread)
			continue
		}
		g.Profile = profile
		seen[profile] = true
		list = append(list, g)
	}
	if len(profiles) == 0 && len(l.Gateways) == 0 {
		l.warn("no files were checked: without spec.sync.profiles the annotations of a pod name its folder, and no gateway is known yet")
	}
	for _, profile := range slices.Sorted(maps.Keys(profiles)) {
		if sound && !seen[profile] && l.narrowed(profile) {
			list = append(list, Gateway{Name: standIn, Profile: profile, madeUp: true})
		}
	}
	for _, profile := range l.Profiles {
		if _, there := profiles[profile]; !there {
			_, err := effective.Of(l.GatewaySync, profile, nil)
			l.fail(orMissing(err, profile), v1alpha1.ReasonProfileNotFound, "")
		}
	}
	return list
}

func orMissing(err error, profile string) error {
	if err == nil {
		return failure.New(v1alpha1.ReasonProfileNotFound, "there is no profile %.80q", profile)
	}
	return err
}

func (l *look) narrowed(profile string) bool {
	return len(l.Profiles) == 0 || slices.Contains(l.Profiles, profile)
}

// plan plans the commit for one gateway and records the problems.
func (l *look) plan(ctx context.Context, from *offline.Checkout, at repo.Resolution, g Gateway) {
	effective, err := effective.Of(l.GatewaySync, g.Profile, g.Annotations)
	if err != nil {
		l.blame(g, err)
		return
	}
	to := l.target(g, effective)
	tree, err := from.Tree(ctx, to, at, l.r.Ref)
	if err != nil {
		for _, e := range l.alone(ctx, from, at, to, err) {
			l.blame(g, e)
		}
		return
	}
	changes, err := tree.From(&offline.Tree{})
	if err != nil {
		l.blame(g, err)
		return
	}
	for _, e := range tree.Faults(changes, maxProblems) {
		l.blame(g, e)
	}
	for _, w := range changes.Warnings {
		l.warn("profile %s: %s", profileName(g), w)
	}
	c := Checked{Profile: g.Profile, Files: len(changes.List)}
	if !g.madeUp {
		c.Gateway = g.Name
	}
	l.r.Checked = append(l.r.Checked, c)
}

func profileName(g Gateway) string {
	if g.Profile == "" {
		return "none (service path)"
	}
	return g.Profile
}

func (l *look) target(g Gateway, effective effective.Settings) offline.Gateway {
	pod := g.Pod
	if pod == "" {
		pod = g.Name
	}
	namespace := l.GatewaySync.Namespace
	if namespace == "" {
		namespace = "default"
	}
	ordinal, _ := v1alpha1.PodOrdinal(pod, g.Labels)
	return offline.Gateway{Profile: effective, Form: l.Form, Facts: plan.Facts{
		GatewayName: g.Name, PodName: pod, PodOrdinal: ordinal, Namespace: namespace, CRName: l.GatewaySync.Name, Labels: g.Labels,
		Unlabelled: g.Unread != "",
	}}
}

// blame records a problem of a gateway. It only warns if the problem depends on the name or labels of a gateway that does not
// exist yet, because that must not stop the sync that creates it, or on labels that cannot be read.
func (l *look) blame(g Gateway, err error) {
	reason := failure.Reason(err, v1alpha1.ReasonProfilesInvalid)
	switch {
	case g.madeUp && (reason == v1alpha1.ReasonTemplateFailed || reason == v1alpha1.ReasonSourceMissing && l.templated(g.Profile)):
		l.warn("profile %s: %s; the profile has no known gateway: if one is expected, name it with --gateway NAME=%s", g.Profile, err, g.Profile)
	case g.madeUp:
		l.fail(inProfile(g.Profile, err), reason, "")
	case errors.Is(err, render.ErrUnread):
		l.warn("%s: %s; not checked, because the labels of its pod are unknown: %s", g.Name, inProfile(g.Profile, err), g.Unread)
	case g.Unread != "":
		l.fail(failure.New(reason, "%w (the annotations of its pod, such as its excludes, are unknown: %s)", inProfile(g.Profile, err), g.Unread), reason, g.Name)
	default:
		l.fail(inProfile(g.Profile, err), reason, g.Name)
	}
}

// inProfile adds the profile to an error.
func inProfile(profile string, err error) error {
	if profile == "" {
		return err
	}
	return failure.New(failure.Reason(err, v1alpha1.ReasonProfilesInvalid), "profile %s: %w", profile, err)
}

// templated reports whether the mappings of a profile depend on the gateway.
func (l *look) templated(profile string) bool {
	p := l.GatewaySync.Spec.Sync.Profiles[profile]
	return slices.ContainsFunc(p.Mappings, func(m v1alpha1.Mapping) bool {
		return strings.Contains(m.Source, "{{") || strings.Contains(m.Destination, "{{")
	})
}

// nothing is a source path that no commit has.
const nothing = ".stoker/preflight/nothing"

// alone plans each mapping on its own, to find all problems if planning them together stops at the first one.
func (l *look) alone(ctx context.Context, from *offline.Checkout, at repo.Resolution, g offline.Gateway, first error) []error {
	all := g.Profile.Mappings
	if len(all) < 2 || g.Profile.Profile == "" { // a single mapping of a service path may be missing
		return []error{first}
	}
	g.Profile.SystemName, g.Profile.SystemNameTemplate = "", "" // its file may come with another mapping
	var errs, faults []error
	for i := range all {
		one := g
		one.Profile.Mappings = slices.Clone(all)
		for j := range all {
			if j != i { // keep the positions, so that the number in an error is that of the spec
				one.Profile.Mappings[j] = v1alpha1.Mapping{Source: nothing, Destination: all[j].Destination, Type: v1alpha1.MappingDir}
			}
		}
		tree, err := from.Tree(ctx, one, at, l.r.Ref)
		if err == nil {
			faults = append(faults, faultsOf(tree)...)
		} else if failure.Reason(err, "") != "" {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		errs = []error{first}
	}
	return append(errs, faults...)
}

// faultsOf returns what is wrong with the files of a tree. Errors that prevent planning are reported by plan.
func faultsOf(tree *offline.Tree) []error {
	changes, err := tree.From(&offline.Tree{})
	if err != nil {
		return nil
	}
	return tree.Faults(changes, maxProblems)
}
