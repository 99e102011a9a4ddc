package ui

import (
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/giturl"
)

// web returns the pages of the fleet's repository at its git host.
func (f fleet) web() giturl.Web {
	if f.gs == nil {
		return giturl.Web{}
	}
	return giturl.WebOf(f.gs.Spec.Git.Repo, f.gs.Spec.Provider())
}

// commit is a commit as pages show it.
type commit struct{ ID, Link, Subject string }

// newCommit returns a commit with the address of its page at the git host, and its subject if the status has it.
func (f fleet) newCommit(id string) commit {
	c := commit{ID: clean(syntax.ShortCommit(id), 7), Link: f.web().Commit(id)}
	if f.gs == nil || id == "" {
		return c
	}
	if t := f.gs.Status.Target; t != nil && t.Commit == id {
		c.Subject = t.Subject
	} else if i := slices.IndexFunc(f.gs.Status.History, func(h v1alpha1.CommitRecord) bool { return h.Commit == id }); i >= 0 {
		c.Subject = f.gs.Status.History[i].Subject
	}
	c.Subject = clean(c.Subject, maxMessage)
	return c
}

// Desired returns the desired commit.
func (f fleet) Desired() commit {
	if f.gs == nil || f.gs.Status.Outcome == nil || f.Commit == "" || !strings.HasPrefix(f.gs.Status.Outcome.Commit, f.Commit) {
		return commit{ID: f.Commit}
	}
	return f.newCommit(f.gs.Status.Outcome.Commit)
}

// compare returns the address of what changed between two commits at the git host, or "".
func (f fleet) compare(from, to plan.ID) string { return f.web().Compare(from.String(), to.String()) }
