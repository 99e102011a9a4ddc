package status

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// OverSSH reports whether a repository uses ssh: ssh://, or [user@]host:path.
func OverSSH(repo string) bool {
	if scheme, _, ok := strings.Cut(repo, "://"); ok {
		return scheme == "ssh"
	}
	return !strings.HasPrefix(repo, "/") && strings.Contains(repo, ":")
}

// targetStatus returns status.target of a ref that has no commit yet.
func targetStatus(r Ref) *v1alpha1.TargetStatus {
	d := r.Desired
	t := &v1alpha1.TargetStatus{Ref: d.Ref, RefShort: d.Ref, RequestedBy: d.RequestedBy, RequestedAt: r.Answered}
	if syntax.IsCommit(d.Ref) {
		t.RefShort = syntax.ShortCommit(d.Ref)
	}
	return t
}

func refResolved(f *facts) *metav1.Condition {
	switch {
	case f.Ref.Err != nil:
		return f.condition(metav1.ConditionFalse, f.refReason(), refError(f))
	case f.resolved:
		message := fmt.Sprintf("%s is at %s", f.Target.Ref, syntax.ShortCommit(f.Target.Commit))
		if f.Target.Ref == f.Target.Commit {
			message = "the repository has commit " + syntax.ShortCommit(f.Target.Commit)
		}
		return f.condition(metav1.ConditionTrue, v1alpha1.ReasonRefResolved, message)
	case f.Ref.Polling:
		return f.condition(metav1.ConditionUnknown, v1alpha1.ReasonProgressing, f.polling())
	}
	return f.condition(metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "git has not been polled yet")
}

// refReason returns the reason of Ref.Err, or "" if it is nil.
func (f *facts) refReason() v1alpha1.Reason {
	if f.Ref.Err == nil {
		return ""
	}
	return failure.Reason(f.Ref.Err, v1alpha1.ReasonGitUnreachable)
}

// polling returns the message while git is polled.
func (f *facts) polling() string { return "polling git for " + f.Ref.Desired.Ref }

// refError returns the message of Ref.Err, with what the gateways do meanwhile.
func refError(f *facts) string {
	reason, message := f.refReason(), f.Ref.Err.Error()
	if f.resolved && !f.inherited {
		message = fmt.Sprintf("%s; the gateways stay at %s", failure.Cut(message, maxMessage-80), syntax.ShortCommit(f.Target.Commit))
	}
	// The text of a network error differs between attempts, for example in a port. Only another reason is a change.
	if c := f.lastCondition(v1alpha1.ConditionRefResolved); c != nil && c.Status == metav1.ConditionFalse && c.Reason == string(reason) &&
		reason.Class() == v1alpha1.ClassRetry && f.sameRef() && c.ObservedGeneration == f.GatewaySync.Generation {
		return c.Message
	}
	return message
}

// sshHostKeyVerification returns the condition SSHHostKeyVerification, which only repositories over ssh have.
func sshHostKeyVerification(f *facts) *metav1.Condition {
	known := f.lastCondition(v1alpha1.ConditionSSHHostKeyVerification)
	if f.Invalid != nil {
		return known
	}
	git := f.GatewaySync.Spec.Git
	if !OverSSH(git.Repo) {
		return nil
	}
	if git.Auth != nil && git.Auth.SSHKey != nil && git.Auth.SSHKey.InsecureIgnoreHostKey {
		return f.condition(metav1.ConditionFalse, v1alpha1.ReasonHostKeyUnknown,
			"the git host is not checked: spec.git.auth.sshKey.insecureIgnoreHostKey is set")
	}
	bad := func(r v1alpha1.Reason) bool {
		return r == v1alpha1.ReasonHostKeyUnknown || r == v1alpha1.ReasonHostKeyMismatch
	}
	if r := f.refReason(); bad(r) {
		return f.condition(metav1.ConditionFalse, r, f.Ref.Err.Error())
	}
	for i := range f.fleet {
		if g := &f.fleet[i]; bad(g.Reason) {
			return f.condition(metav1.ConditionFalse, g.Reason, gatewaypod.GatewayLabel(g.Name, g.PodName)+": "+g.Message)
		}
	}
	if f.Ref.HostKey || f.fleet.synced() > 0 || known != nil && known.Status == metav1.ConditionTrue && f.sameRef() {
		return f.condition(metav1.ConditionTrue, v1alpha1.ReasonHostKeyVerified, "the git host presented a trusted key")
	}
	return f.condition(metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "the git host has not been reached yet")
}
