package request

import (
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// Expand returns the commit that ref abbreviates, or ref itself if it abbreviates none. The repository cannot be asked, so it searches the
// commits in the status of o. A text of 7 to 39 hexadecimal digits that begins none of them is an *InvalidError, unless it has no letter: then
// it may be a tag that is named after a date.
func Expand(o v1alpha1.Requestable, ref string) (string, error) {
	prefix := strings.ToLower(ref)
	if !syntax.IsCommitPrefix(prefix) || syntax.IsCommit(prefix) {
		return ref, nil
	}
	found := ""
	for _, commit := range commits(o) {
		switch {
		case !strings.HasPrefix(commit, prefix) || !syntax.IsCommit(commit) || commit == found:
		case found != "":
			return "", invalid("%s is both %s and %s: write more digits", ref, found, commit)
		default:
			found = commit
		}
	}
	if found == "" && strings.Trim(prefix, "0123456789") != "" {
		return "", invalid("%s looks like the first digits of a commit, and the status has no commit that begins with them: write all 40 digits, or refs/heads/%[1]s or refs/tags/%[1]s",
			ref)
	}
	if found == "" {
		return ref, nil
	}
	return found, nil
}

// commits returns the commits that the status of o names.
func commits(o v1alpha1.Requestable) []string {
	status := desiredref.RefStatusOf(o)
	list := []string{status.Commit}
	for _, r := range history(status) {
		list = append(list, r.Commit)
	}
	gs, ok := o.(*v1alpha1.GatewaySync)
	if !ok {
		return list
	}
	if t := gs.Status.Target; t != nil {
		list = append(list, t.Commit)
	}
	for _, g := range gs.Status.DiscoveredGateways {
		list = append(list, g.SyncedCommit)
		for _, s := range g.SyncHistory {
			list = append(list, s.Commit)
		}
	}
	return list
}
