package ui

import (
	"cmp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/request"
)

// configRow is a ConfigSync as the first page shows it.
type configRow struct {
	Site, Namespace, Name string
	State                 chip
	Ref, Commit           string
	Objects               string // ready and all
	Advice                Advice
	Message               string
	Since                 moment // of the condition

	rank int
}

// failing reports whether the ConfigSync needs attention.
func (r configRow) failing() bool { return r.State.Tone == toneFail || r.State.Tone == toneHeld }

// configs returns the ConfigSyncs of a site. quiet is its silence, with a nil err if the site answers.
func (s *Server) configs(x *site, quiet silence) (list []configRow) {
	if x.configs == nil || x.configNote() != "" && quiet.err == nil {
		return nil
	}
	now := x.Clients.Now()
	for _, cs := range x.configs.List() {
		state := display.ConfigState(cs)
		v := request.ReadConfig(cs, "")
		r := configRow{Site: x.label(), Namespace: cs.Namespace, Name: cs.Name, State: configState(v), Ref: clean(v.Ref, maxWord), Commit: clean(syntax.ShortCommit(cs.Status.SourceRevision), 7),
			Objects: clean(cs.Status.TargetsReady, 32), Advice: s.advisor.advice(state.Reason), Message: clean(state.Message, maxMessage), Since: moment{state.Since, now}}
		if syntax.IsCommit(v.Ref) {
			r.Ref = syntax.ShortCommit(v.Ref)
		}
		if quiet.err != nil {
			r.State, r.Advice, r.Message, r.Since = unconfirmed, Advice{}, quiet.String(), moment{}
		}
		r.rank = r.State.rank(state.Reason)
		list = append(list, r)
	}
	for _, u := range x.configs.Undecodable() {
		list = append(list, configRow{Site: x.label(), Namespace: u.Namespace, Name: u.Name, State: unreadable, Message: clean(u.Error(), maxMessage), rank: rankFailed})
	}
	return list
}

// configState returns the chip that shows a verdict on a ConfigSync.
func configState(v request.Verdict) chip {
	switch v.Phase {
	case request.Succeeded:
		return chip{toneGood, "Ready"}
	case request.Failed:
		return failed
	case request.Held:
		return chip{toneHeld, "Held"}
	case request.Paused:
		return chip{toneOff, "Paused"}
	case request.Progressing, request.Overtaken:
	}
	switch v.Reason.Class() {
	case v1alpha1.ClassRetry, v1alpha1.ClassStalled, v1alpha1.ClassNotInjected:
		return chip{toneFail, "Error"}
	case v1alpha1.ClassHeld:
		return chip{toneHeld, "Held"}
	case v1alpha1.ClassDone, v1alpha1.ClassWorking:
	}
	return chip{toneBusy, "Not applied yet"}
}

// configNote returns why the ConfigSyncs of the site could not be read when the API server last answered; "" if they could.
func (x *site) configNote() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.configErr == nil {
		return ""
	}
	of := ""
	if x.path != "" {
		of = " of " + clean(x.Context, 100)
	}
	if apierrors.IsForbidden(x.configErr) {
		return "The ConfigSyncs" + of + " are not shown: your user lacks the right to list and watch configsyncs.stoker.io."
	}
	return "The ConfigSyncs" + of + " are not shown: " + clean(sites.Cause(x.configErr).Error(), maxCell) + "."
}

// addConfigs adds ConfigSyncs, those that need attention first.
func (p *fleetsPage) addConfigs(list []configRow) {
	slices.SortStableFunc(list, func(a, b configRow) int {
		return cmp.Or(b.rank-a.rank, compareNatural(a.Namespace, b.Namespace), compareNatural(a.Name, b.Name), compareNatural(a.Site, b.Site))
	})
	for _, r := range list {
		if r.failing() {
			p.ConfigsFailing++
		}
		switch {
		case !strings.Contains(strings.ToLower(r.Site)+"/"+r.Namespace+"/"+r.Name, strings.ToLower(p.Search)):
		case len(p.Configs) == maxFleets:
			p.ConfigsMore++
		default:
			p.Configs = append(p.Configs, r)
		}
	}
}
