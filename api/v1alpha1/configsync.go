package v1alpha1

import (
	"cmp"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
)

// Refresh returns how often the ConfigSync is compared with git and with the cluster. The error names the field.
func (s *ConfigSyncSpec) Refresh() (time.Duration, error) {
	return duration("spec.refreshInterval", s.RefreshInterval, DefaultRefreshInterval)
}

// Account returns the name of the ServiceAccount with whose rights objects are applied.
func (s *ConfigSyncSpec) Account() string { return cmp.Or(s.ServiceAccountName, DefaultConfigAccount) }

// Deadline returns how long a run waits until the objects are healthy. The error names the field.
func (s *ConfigSyncSpec) Deadline() (time.Duration, error) {
	return duration("spec.progressDeadline", s.ProgressDeadline, DefaultProgressDeadline)
}

// Paths returns the path of the source, with its default, and the overlays.
func (s *ConfigSource) Paths() (path string, overlays []ConfigPath) {
	switch {
	case s.Git != nil:
		path, overlays = s.Git.Path, s.Git.Overlays
	case s.GatewaySync != nil:
		path, overlays = s.GatewaySync.Path, s.GatewaySync.Overlays
	}
	return cmp.Or(path, "."), overlays
}

// Ref returns the ref to resolve: revision, else branch, else HEAD.
func (g *ConfigGit) Ref() string { return cmp.Or(g.Revision, g.Branch, "HEAD") }

// Waits reports whether a run waits until the objects are healthy.
func (a *ConfigApply) Waits() bool { return a.Wait == nil || *a.Wait }

// Paused reports whether the ConfigSync is paused, by its spec or by the annotation.
func (cs *ConfigSync) Paused() bool {
	return cs.Spec.Paused || cs.Annotations[AnnotationPaused] == "true"
}

// Requests implements Requestable.
func (cs *ConfigSync) Requests() Requests {
	q := Requests{Annotations: cs.Annotations, Status: cs.Status.Request}
	switch git, follow := cs.Spec.Source.Git, cs.Spec.Source.GatewaySync; {
	case git != nil:
		q.Repo, q.Spec, q.Field = git.RepoURL, git.Ref(), "the ref of spec.source.git"
	case follow != nil:
		q.Fixed = "ConfigSync " + cs.Name + " applies the commit of GatewaySync " + follow.Name + ", so that it has no ref of its own: request the ref of the GatewaySync"
	default:
		q.Fixed = "spec.source names no repository"
	}
	return q
}

// WebhookSpec implements Requestable.
func (cs *ConfigSync) WebhookSpec() *WebhookSpec { return &cs.Spec.Webhook }

// RequestKey returns the key of the requests of cs, for status.observedRequest.
func (cs *ConfigSync) RequestKey() string { return cs.Requests().Key() }

// Answered reports whether the status describes the current spec and request.
func (cs *ConfigSync) Answered() bool {
	st := &cs.Status
	return st.ObservedGeneration == cs.Generation && st.ObservedRequest == cs.RequestKey() && meta.FindStatusCondition(st.Conditions, ConditionReady) != nil
}

// Standing implements Requestable.
func (cs *ConfigSync) Standing() Standing {
	st, q := &cs.Status, cs.Requests()
	s := Standing{Answered: cs.Answered(), Rollback: st.Rollback, LastGood: st.LastGood, History: st.History}
	if d, err := q.Desired(""); err == nil {
		s.Ref = d.Ref
	}
	if q.Fixed != "" {
		s.Ref = st.SourceRef
	}
	if s.Ref == st.SourceRef && meta.IsStatusConditionTrue(st.Conditions, ConditionRefResolved) {
		s.Commit = st.SourceRevision
	}
	return s
}

// RollbackNow returns what a rollback would request now, for status.rollback; nil if unknown. The rollback lapses when the ref of the spec
// moves to another commit than Unless. If an earlier rollback is in force, the new one has the same Unless. Commit is "" if the last good
// commit is the desired one.
func (cs *ConfigSync) RollbackNow() *Rollback {
	q, standing := cs.Requests(), cs.Standing()
	if q.Fixed != "" || standing.LastGood == nil || !IsCommit(standing.LastGood.Commit) {
		return nil
	}
	r := &Rollback{Commit: standing.LastGood.Commit}
	switch d, err := q.Desired(""); {
	case err != nil: // the request is invalid; a rollback replaces it without a condition
	case d.Override:
		if unless := q.Unless(); IsCommit(unless) {
			r.Unless = unless
		}
	case IsCommit(q.Spec):
		r.Unless = strings.ToLower(q.Spec)
	case standing.Commit != "":
		r.Unless = standing.Commit
	default:
		return nil // git was not polled yet
	}
	if strings.EqualFold(standing.Ref, r.Commit) || standing.Commit == r.Commit {
		r.Commit = ""
	}
	return r
}

// ConfirmsDeletion reports whether the annotation stoker.io/confirm-deletion names a commit.
func (cs *ConfigSync) ConfirmsDeletion(commit string) bool {
	return ConfirmsDeletion(cs.Annotations[AnnotationConfirmDeletion], commit)
}

// Owner returns the value of the annotation stoker.io/configsync of the objects of this ConfigSync.
func (cs *ConfigSync) Owner() string { return cs.Namespace + "/" + cs.Name }

// TruncateMessage shortens a message to the 1024 characters that a field of the status may have.
func TruncateMessage(s string) string {
	const maxLength = 1024
	if utf8.RuneCountInString(s) <= maxLength {
		return s
	}
	return string([]rune(s)[:maxLength-1]) + "…"
}
