package ui

import (
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/internal/giturl"
)

// web returns the pages of the fleet's repository at its git host.
func (f fleet) web() giturl.Web {
	if f.gs == nil {
		return giturl.Web{}
	}
	return giturl.WebOf(f.gs.Spec.Git.Repo, f.gs.Spec.Provider())
}

// CommitLink returns the address of the desired commit at the git host, or "".
func (f fleet) CommitLink() string {
	if f.gs == nil || f.gs.Status.Outcome == nil || f.Commit == "" || !strings.HasPrefix(f.gs.Status.Outcome.Commit, f.Commit) {
		return ""
	}
	return f.web().Commit(f.gs.Status.Outcome.Commit)
}

// compare returns the address of what changed between two commits at the git host, or "".
func (f fleet) compare(from, to plan.ID) string { return f.web().Compare(from.String(), to.String()) }
