package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Gateway is an existing or expected gateway.
type Gateway struct {
	Name                string
	Pod                 string // name of its pod; "" if it is that of the gateway
	Profile             string // of the pod's annotation; "" for the default one
	Labels, Annotations map[string]string
	// UnreadReason says why the labels and annotations of the pod are unknown; "" if they are known.
	UnreadReason string
	// placeholder is true if the gateway stands for the future gateways of a profile.
	placeholder bool
}

const placeholderName = "gateway"

// targets returns the gateways to plan for: the known ones, and a placeholder for each profile without one. If the spec is not
// valid, there are no placeholders, because validate has already reported what is wrong with their profiles.
func (r *run) targets(valid bool) []Gateway {
	profiles := r.GatewaySync.Spec.Sync.Profiles
	var list []Gateway
	seen := map[string]bool{}
	for _, g := range r.Gateways {
		profile := g.Profile
		if profile == "" {
			profile = g.Annotations[v1alpha1.AnnotationProfile]
		}
		if profile == "" && len(profiles) > 0 {
			profile = v1alpha1.DefaultProfile
		}
		if !r.selected(profile) {
			continue
		}
		if len(profiles) == 0 && g.UnreadReason != "" {
			r.warn("%s: not checked, because the annotations of its pod name its folder: %s", g.Name, g.UnreadReason)
			continue
		}
		g.Profile = profile
		seen[profile] = true
		list = append(list, g)
	}
	if len(profiles) == 0 && len(r.Gateways) == 0 {
		r.warn("no files were checked: without spec.sync.profiles the annotations of a pod name its folder, and no gateway is known yet")
	}
	for _, profile := range slices.Sorted(maps.Keys(profiles)) {
		if valid && !seen[profile] && r.selected(profile) {
			list = append(list, Gateway{Name: placeholderName, Profile: profile, placeholder: true})
		}
	}
	for _, profile := range r.Profiles {
		if _, ok := profiles[profile]; !ok {
			_, err := effective.Of(r.GatewaySync, profile, nil)
			if err == nil {
				err = failure.New(v1alpha1.ReasonProfileNotFound, "there is no profile %.80q", profile)
			}
			r.addProblem(err, v1alpha1.ReasonProfileNotFound, "")
		}
	}
	return list
}

// selected reports whether the input selects a profile.
func (r *run) selected(profile string) bool {
	return len(r.Profiles) == 0 || slices.Contains(r.Profiles, profile)
}

// plan plans the commit for one gateway, and adds the result or the problems.
func (r *run) plan(ctx context.Context, repository *offline.Checkout, at repo.Resolution, g Gateway) {
	effective, err := effective.Of(r.GatewaySync, g.Profile, g.Annotations)
	if err != nil {
		r.addGatewayProblem(g, err)
		return
	}
	to := r.target(g, effective)
	tree, err := repository.Tree(ctx, to, at, r.result.Ref)
	if err != nil {
		for _, e := range r.planAlone(ctx, repository, at, to, err) {
			r.addGatewayProblem(g, e)
		}
		return
	}
	changes, err := tree.From(&offline.Tree{})
	if err != nil {
		r.addGatewayProblem(g, err)
		return
	}
	for _, e := range tree.Faults(changes, maxProblems) {
		r.addGatewayProblem(g, e)
	}
	r.addReferences(g, effective.References, tree)
	for _, w := range changes.Warnings {
		r.warn("profile %s: %s", offline.ProfileLabel(g.Profile), w)
	}
	c := Checked{Profile: g.Profile, Files: len(changes.List)}
	if !g.placeholder {
		c.Gateway = g.Name
	}
	r.result.Checked = append(r.result.Checked, c)
}

// addReferences adds what the files of a gateway name and the commit does not have, once for all gateways of a profile. It is a problem
// only if a sync refuses it.
func (r *run) addReferences(g Gateway, policy v1alpha1.ReferencePolicy, tree *offline.Tree) {
	found, err := tree.References()
	if err != nil {
		r.addGatewayProblem(g, err)
		return
	}
	for i := range found.Findings {
		ref := Reference{found.Findings[i], g.Profile}
		known := slices.ContainsFunc(r.result.References, func(other Reference) bool {
			return other.Profile == ref.Profile && other.String() == ref.String()
		})
		if !known && len(r.result.References) < maxReferences {
			r.result.References = append(r.result.References, ref)
		}
		if policy == v1alpha1.ReferencesRefuse {
			r.addGatewayProblem(g, failure.New(v1alpha1.ReasonReferenceMissing, "%s", ref.String()))
		} else {
			r.warn("profile %s: %s", offline.ProfileLabel(g.Profile), ref.String())
		}
	}
	if found.More > 0 {
		r.warn("profile %s: %d more names do not exist", offline.ProfileLabel(g.Profile), found.More)
	}
}

// target returns a gateway for package offline. effective is its profile.
func (r *run) target(g Gateway, effective effective.Settings) offline.Gateway {
	pod := cmp.Or(g.Pod, g.Name)
	namespace := cmp.Or(r.GatewaySync.Namespace, "default")
	ordinal, _ := gatewaypod.Ordinal(pod, g.Labels)
	return offline.Gateway{Profile: effective, Form: r.Form, Facts: plan.Facts{
		GatewayName: g.Name, PodName: pod, PodOrdinal: ordinal, Namespace: namespace, CRName: r.GatewaySync.Name, Labels: g.Labels,
		Unlabelled: g.UnreadReason != "",
	}}
}

// addGatewayProblem adds a problem of a gateway. It adds only a warning if the problem depends on labels that cannot be read, or
// on the name or labels of a gateway that does not exist yet: the sync that creates the gateway must not stop.
func (r *run) addGatewayProblem(g Gateway, err error) {
	reason := failure.Reason(err, v1alpha1.ReasonProfilesInvalid)
	switch {
	case g.placeholder && (reason == v1alpha1.ReasonTemplateFailed || reason == v1alpha1.ReasonSourceMissing && r.templated(g.Profile)):
		r.warn("profile %s: %s; the profile has no known gateway: if one is expected, name it with --gateway NAME=%s", g.Profile, err, g.Profile)
	case g.placeholder:
		r.addProblem(inProfile(g.Profile, err), reason, "")
	case errors.Is(err, render.ErrUnread):
		r.warn("%s: %s; not checked, because the labels of its pod are unknown: %s", g.Name, inProfile(g.Profile, err), g.UnreadReason)
	case g.UnreadReason != "":
		r.addProblem(failure.New(reason, "%w (the annotations of its pod, such as its excludes, are unknown: %s)", inProfile(g.Profile, err), g.UnreadReason), reason, g.Name)
	default:
		r.addProblem(inProfile(g.Profile, err), reason, g.Name)
	}
}

// inProfile adds the name of the profile to an error, and keeps its reason.
func inProfile(profile string, err error) error {
	if profile == "" {
		return err
	}
	return failure.New(failure.Reason(err, v1alpha1.ReasonProfilesInvalid), "profile %s: %w", profile, err)
}

// templated reports whether the mappings of a profile depend on the gateway.
func (r *run) templated(profile string) bool {
	p := r.GatewaySync.Spec.Sync.Profiles[profile]
	return slices.ContainsFunc(p.Mappings, func(m v1alpha1.Mapping) bool {
		return strings.Contains(m.Source, "{{") || strings.Contains(m.Destination, "{{")
	})
}

// noSource is a source path that no commit has.
const noSource = ".stoker/preflight/nothing"

// planAlone plans each mapping on its own, and returns all errors. first is the error of the plan of all mappings, which ended there.
func (r *run) planAlone(ctx context.Context, repository *offline.Checkout, at repo.Resolution, g offline.Gateway, first error) []error {
	all := g.Profile.Mappings
	if len(all) < 2 || g.Profile.Profile == "" { // a service path needs only one of its folders, so a folder alone may be missing
		return []error{first}
	}
	g.Profile.SystemName, g.Profile.SystemNameTemplate = "", "" // its file may come with another mapping
	var errs, faults []error
	for i := range all {
		one := g
		one.Profile.Mappings = slices.Clone(all)
		for j := range all {
			if j != i { // keep the positions, so that the number in an error is that of the spec
				one.Profile.Mappings[j] = v1alpha1.Mapping{Source: noSource, Destination: all[j].Destination, Type: v1alpha1.MappingDir}
			}
		}
		tree, err := repository.Tree(ctx, one, at, r.result.Ref)
		if err == nil {
			faults = append(faults, fileFaults(tree)...)
		} else if failure.Reason(err, "") != "" {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		errs = []error{first}
	}
	return append(errs, faults...)
}

// fileFaults returns what is wrong with the files of a tree. It returns nil if the tree cannot be planned, which plan reports.
func fileFaults(tree *offline.Tree) []error {
	changes, err := tree.From(&offline.Tree{})
	if err != nil {
		return nil
	}
	return tree.Faults(changes, maxProblems)
}

// Mounts reads secrets from files. A Job mounts them, so that it needs no right to read Secrets.
type Mounts struct {
	// Files maps NAME/KEY to a file.
	Files map[string]string
	// Dir holds a directory for each Secret, with a file for each key.
	Dir string
}

var _ connect.Secrets = Mounts{}

// Read implements connect.Secrets.
func (m Mounts) Read(field secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	v, err := connect.LocalSecrets(m).Read(field, ref)
	switch {
	case err == nil:
		return v, nil
	case errors.Is(err, fs.ErrNotExist):
		return v, failure.New(v1alpha1.ReasonAuthFailed, "%s references key %s of %s %s, which is not mounted: mount the %[3]s at %[5]s, or pass --secret %[4]s/%[2]s=FILE",
			field, ref.Key, field.Kind(), ref.Name, filepath.Join(m.Dir, ref.Name))
	}
	return v, fmt.Errorf("%s: %w", field, err)
}

// Reachable implements connect.Secrets. It does not wait, because mounts do not change during a run.
func (m Mounts) Reachable(field secretrefs.Field, ref v1alpha1.SecretKeyRef) error {
	_, err := m.Read(field, ref)
	return err
}

// cachedSecrets reads each secret once: a process substitution of a shell, <(command), is a pipe that is empty the second time.
type cachedSecrets struct {
	connect.Secrets
	mu    sync.Mutex
	cache map[v1alpha1.SecretKeyRef]secret.String
}

func (r *cachedSecrets) Read(field secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.cache[ref]; ok {
		return v, nil
	}
	v, err := r.Secrets.Read(field, ref)
	if err == nil {
		r.cache[ref] = v
	}
	return v, err
}

func (r *cachedSecrets) Reachable(field secretrefs.Field, ref v1alpha1.SecretKeyRef) error {
	_, err := r.Read(field, ref)
	return err
}
