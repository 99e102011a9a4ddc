package status

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// rejectUsedProfiles makes the spec invalid if a gateway uses a flawed profile. A flawed profile that no gateway uses may be work in progress,
// so it does not make the spec invalid.
func (w *writer) rejectUsedProfiles() {
	used := map[string]bool{}
	for i := range w.rows {
		used[w.rows[i].profile()] = true
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(w.Flawed)) {
		if used[name] {
			errs = append(errs, w.Flawed[name])
		}
	}
	if w.Invalid == nil && len(errs) > 0 {
		w.Invalid = failure.New(v1alpha1.ReasonProfilesInvalid, "%w", utilerrors.NewAggregate(errs))
	}
}

// profile returns the profile of a gateway, or the one that its pod asks for if it has not reported.
func (g *gateway) profile() string {
	if g.Profile != "" {
		return g.Profile
	}
	for _, p := range g.pods {
		if name, _ := v1alpha1.PodAnnotation(p.Annotations, v1alpha1.AnnotationProfile); name != "" {
			return name
		}
	}
	return v1alpha1.DefaultProfile
}

// setProfiles sets the condition ProfilesValid. A flawed profile that no gateway uses appears in its message. In
// service-path mode, the spec has no profiles: an annotation of each pod names its folder.
func (w *writer) setProfiles() {
	if w.Invalid != nil {
		w.set(v1alpha1.ConditionProfilesValid, metav1.ConditionFalse,
			failure.Reason(w.Invalid, v1alpha1.ReasonProfilesInvalid), w.Invalid.Error())
		return
	}
	var valid, flawed []string
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(w.GatewaySync.Spec.Sync.Profiles)) {
		if err := w.Flawed[name]; err != nil {
			flawed, errs = append(flawed, name), append(errs, err)
		} else {
			valid = append(valid, name)
		}
	}
	message := "service-path mode: the spec has no profiles"
	switch {
	case len(valid) > 0:
		message = "valid: " + list(valid)
	case len(flawed) > 0:
		message = "valid: none"
	}
	if len(flawed) > 0 {
		message += fmt.Sprintf("; used by no gateway, and wrong: %s: %v", list(flawed), utilerrors.NewAggregate(errs))
	}
	w.set(v1alpha1.ConditionProfilesValid, metav1.ConditionTrue, v1alpha1.ReasonProfilesValid, message)
}
