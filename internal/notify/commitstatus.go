package notify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path"
	"strings"
	"time"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/secret"
)

// commitStatus is the topic of a webhook that sets the status of commits. A spec cannot name it.
const commitStatus v1alpha1.AlertTopic = "CommitStatus"

// dueStatus returns the status of the desired commit if it was not sent yet. A commit that succeeded does not become pending again, for
// example when a pod restarts. A state of the same commit, except success, must last for settle. A pending commit that another
// one supersedes fails.
//
// A record is "ID STATE DETAIL": the statusID, the state, and the commit of a pending status or the reason of a failed one; see statusOf.
func (ch *channel) dueStatus(in input, settle time.Duration) []change {
	c, ok := statusOf(in)
	lastID, lastRest, _ := strings.Cut(ch.sent[commitStatus], " ")
	id, rest, _ := strings.Cut(c.recordIfAccepted, " ")
	if !ok || id == lastID && (rest == lastRest || lastRest == string(forge.Success) && c.State == State(forge.Pending)) {
		delete(ch.changedAt, commitStatus)
		return nil
	}
	since, differed := ch.changedAt[commitStatus]
	if !differed {
		since = in.now
		ch.changedAt[commitStatus] = since
	}
	if id == lastID && c.State != State(forge.Success) && in.now.Sub(since) < settle {
		return nil
	}
	changes := []change{c}
	if old := strings.TrimPrefix(lastRest, string(forge.Pending)+" "); id != lastID && syntax.IsCommit(old) && statusID(in, old) == lastID {
		// It comes last, and is tried once, because the record of c replaces that of the old commit even if this change fails: the old
		// commit may be gone from the forge.
		changes = append(changes, change{Topic: commitStatus, State: State(forge.Failure), Commit: old, Text: "superseded by " + syntax.ShortCommit(c.Commit), recordIfAccepted: c.recordIfAccepted})
	}
	return changes
}

// statusID identifies a commit of a repository in the record.
func statusID(in input, commit string) string {
	sum := sha256.Sum256([]byte(in.Spec.Git.Repo + " " + commit))
	return hex.EncodeToString(sum[:8])
}

// statusOf returns the status of the desired commit, or false if it is not known.
func statusOf(in input) (change, bool) {
	v := in.verdict
	if !syntax.IsCommit(v.Commit) || v.Reason == v1alpha1.ReasonAgentsAway {
		return change{}, false
	}
	commit := strings.ToLower(v.Commit)
	state, text, detail := forge.Pending, v.Message, " "+commit
	switch v.Phase {
	case request.Succeeded:
		state, detail = forge.Success, ""
	case request.Failed:
		state, text, detail = forge.Failure, string(v.Reason)+": "+v.Message, " "+situation{reason: v.Reason}.key()
	}
	return change{Topic: commitStatus, State: State(state), Ref: v.Ref, Commit: commit, Text: failure.Cut(annotation.Line(text), forge.MaxDescription),
		recordIfAccepted: statusID(in, commit) + " " + string(state) + detail}, true
}

// setStatus sets the status of the commit of each change at the forge of the repository. It returns the changes that the forge accepted, also
// with an error.
func (n *Notifier) setStatus(ctx context.Context, client httpclient.Client, gs *v1alpha1.GatewaySync, token secret.String, changes []change) ([]change, error) {
	f, err := forgeOf(gs, client, token)
	if err != nil {
		return nil, err
	}
	for i, c := range changes {
		err := f.SetStatus(ctx, c.Commit, forge.CommitStatus{State: forge.CommitState(c.State), Context: n.statusContext(gs), Description: c.Text, URL: n.statusPage(gs)})
		if after, ok := backoff.Asked(err); ok {
			err = &statusError{err.Error(), min(after, maxRetryAfter)}
		}
		if err != nil {
			return changes[:i], err
		}
	}
	return changes, nil
}

// forgeOf returns the forge of the repository of a GatewaySync. Users of a namespace choose the address, so the client checks what it dials.
func forgeOf(gs *v1alpha1.GatewaySync, client httpclient.Client, token secret.String) (forge.Forge, error) {
	at, provider, base := gs.Spec.Git.Repo, cmp.Or(gs.Spec.Provider(), giturl.ProviderOf(gs.Spec.Git.Repo)), ""
	if b := gs.Spec.Bidirectional; b != nil {
		base = b.APIBaseURL
	}
	switch scheme, _, _ := strings.Cut(at, "://"); {
	case strings.EqualFold(scheme, "http"):
		return nil, errors.New("spec.git.repo is http://, and the token would be sent in the clear: use https:// or ssh")
	case provider == "":
		return nil, errors.New("the forge cannot be recognized from the host of spec.git.repo: set spec.bidirectional.provider")
	}
	return forge.New(provider, forge.Config{Repository: at, APIBaseURL: base, Transport: client,
		Token: func(context.Context) (secret.String, error) { return token, nil }})
}

// statusContext returns the name of the status of a GatewaySync. The GatewaySyncs of several clusters can follow one repository.
func (n *Notifier) statusContext(gs *v1alpha1.GatewaySync) string {
	name := path.Join("stoker", n.Cluster, gs.Namespace, gs.Name)
	if len(name) > forge.MaxContext {
		sum := sha256.Sum256([]byte(name))
		name = name[:forge.MaxContext-17] + "-" + hex.EncodeToString(sum[:8])
	}
	return name
}

// statusPage returns the page for a status, or "" if its address is longer than a forge accepts: Config.Page may have names several times.
func (n *Notifier) statusPage(gs *v1alpha1.GatewaySync) string {
	if page := n.page(gs); len(page) <= forge.MaxURL {
		return page
	}
	return ""
}
