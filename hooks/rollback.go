package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// rollbackRequested is printed for a rollback. If the rollback changes nothing, the message of the answer is printed instead.
const rollbackRequested = "rollback requested"

func newRollbackCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "rollback NAME",
		Short: "Go back to the last good commit",
		Long: `Go back to the last good commit: the last one that ran on every gateway, verified. For configsync/NAME: the last one that was applied
with all objects healthy.

It lasts until the ref of the spec resolves to another commit, or, if a request was rolled back, until another ref is requested.

Use --if-needed in a Job that runs after a failed sync. The command requests a poll of git, waits for the result of the desired
commit, and rolls back only if the commit itself fails: invalid JSON, a template error, or a missing source. If gateways are
unavailable, wait for an approval or are still syncing, or if there is no earlier commit, the command changes nothing,
prints the reason, and exits with 0.`,
		Example: `  # roll back to the last commit that ran on all gateways
  stoker rollback line --wait

  # roll back to an earlier commit
  stoker history line
  stoker rollback line --to 8a9ef4f

  # in the SyncFail hook of Argo CD
  stoker rollback line --if-needed --by argocd --id "$JOB_NAME"`,
		Args: cobra.ExactArgs(1),
	}
	f := command.Flags()
	ifNeeded := f.Bool("if-needed", false, "roll back only if the desired commit fails; otherwise exit with 0")
	timeout := f.Duration("verdict-timeout", time.Minute, "with --if-needed: maximum time to wait for the result of the commit")
	to := f.String("to", "", "commit of the history, seven digits or more (default: the last good commit)")
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		if err := request.CheckTo(*to); err != nil { // before the command requests a poll
			return err
		}
		failed := ""
		if *ifNeeded {
			if *timeout <= 0 {
				return exit.Errorf(exit.Usage, "--verdict-timeout must be positive")
			}
			needed, commit, err := r.needsRollback(ctx, args[0], *timeout)
			if err != nil || !needed {
				return err
			}
			failed = commit
		}
		return r.send(ctx, args[0], rollbackRequested, func(ctx context.Context, p target) (request.Answer, error) {
			for { // the lead may be about to resolve the branch
				answer, err := p.setter().Rollback(ctx, p.namespace, p.name, failed, *to, r.by, r.id)
				if !errors.Is(err, request.ErrTooEarly) || !backoff.Wait(ctx, time.Second) {
					return answer, err
				}
			}
		})
	}).addSenderFlags(command)
	return command
}

// needsRollback reports whether the desired commit itself fails, and returns the commit. If not, it prints why. If the same Job has
// already rolled back, and a commit is still desired, it returns true without a commit.
func (r *requester) needsRollback(ctx context.Context, arg string, timeout time.Duration) (needed bool, commit string, err error) {
	if err := (request.Request{By: r.by, ID: r.id}).Check(); err != nil {
		return false, "", err
	}
	p, err := r.c.connectTo(arg)
	if err != nil {
		return false, "", err
	}
	if p.kind == kube.ConfigSync {
		return false, "", exit.Errorf(exit.Usage, "--if-needed is for GatewaySyncs: set spec.rollbackOnFailure of the ConfigSync to LastGood")
	}
	notNeeded := func(format string, args ...any) (bool, string, error) {
		fmt.Fprintf(r.c.stderr, "%s: nothing was rolled back: %s\n", p.name, output.Clean(fmt.Sprintf(format, args...)))
		return false, "", nil
	}
	gs, err := p.get(ctx, p.name)
	switch {
	case apierrors.IsNotFound(err):
		return notNeeded("%s", p.explain(p.name, err))
	case err != nil:
		return false, "", p.explain(p.name, err)
	case request.Taken(gs, r.by, r.id):
		if v := request.Read(gs, "", nil, p.Now()); !syntax.IsCommit(v.Ref) {
			return notNeeded("request %s has already rolled back, and another ref is desired now", r.id)
		}
		return true, "", nil
	case gs.Status.LastGood == nil:
		return notNeeded("%s", request.ErrNothingGood)
	}
	// Git may have a fix by now, and the failure may not be reported yet. So the command requests a poll.
	before := request.Read(gs, "", nil, p.Now())
	if err := p.retry(ctx, func(ctx context.Context) error {
		_, err := p.setter().Ask(ctx, p.namespace, p.name, request.Request{By: r.by})
		return err
	}); err != nil {
		if invalid, ok := errors.AsType[*request.InvalidError](err); ok { // the desired ref is not valid
			return notNeeded("%s", invalid)
		}
		return false, "", p.explain(p.name, err)
	}
	v, err := r.waitForVerdict(ctx, p, before, timeout)
	switch {
	case ctx.Err() != nil:
		return false, "", fmt.Errorf("interrupted, nothing was rolled back: %s", v.Message)
	case err != nil:
		return false, "", p.explain(p.name, err)
	case v.Phase == request.Succeeded:
		return notNeeded("%s", v.Message)
	case v.Phase != request.Failed:
		return notNeeded("no verdict within %s: %s", timeout, v.Message)
	case !blamesCommit(v):
		return notNeeded("it is not the commit that fails: %s: %s", v.Reason, v.Message)
	}
	return true, v.Commit, nil
}

// waitForVerdict waits until the outcome of the desired ref is known, for at most timeout. It returns the last verdict. before is
// the verdict from before the requested poll.
//
// A poll of git restarts an expired progress deadline. So before stays valid while the commit is the same and a gateway rejects
// it.
func (r *requester) waitForVerdict(ctx context.Context, p target, before request.Verdict, timeout time.Duration) (request.Verdict, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	w := &waiter{c: r.c, target: p}
	last := request.Verdict{Message: "the API server does not answer"}
	for n := 0; ; n++ {
		pollCtx := limited
		if n == 0 {
			pollCtx = ctx
		}
		w.ref = "" // any desired ref
		v, err := w.poll(pollCtx)
		switch {
		case err == nil:
			last = v
		case ctx.Err() == nil && permanent(err):
			return last, err
		}
		if deadlineExpired(before) && blamesCommit(before) && v.Phase == request.Progressing && v.Commit != "" && v.Commit == before.Commit &&
			slices.ContainsFunc(v.Behind, rejectsCommit) {
			return before, nil
		}
		if v.Phase == request.Succeeded || v.Phase == request.Paused || v.Phase == request.Failed && !mayChange(v) {
			return v, nil
		}
		if !backoff.Wait(limited, pollInterval(n)) {
			break
		}
	}
	if last.Phase == "" {
		return last, exit.Errorf(exit.Retry, "nothing was rolled back: %s", last.Message)
	}
	return last, nil
}

// deadlineExpired reports whether the failure is an expired progress deadline.
func deadlineExpired(v request.Verdict) bool {
	return v.Phase == request.Failed && v.Reason == v1alpha1.ReasonProgressDeadlineExceeded
}

// mayChange reports whether a gateway fails for another reason than the commit, while other gateways have no result yet.
func mayChange(v request.Verdict) bool {
	return !blamesCommit(v) && v.Gateways.Failed > 0 && v.Gateways.Failed < len(v.Behind)
}

// blamesCommit reports whether the content of the commit causes the failure, so that another commit helps. Only gateways can
// tell: a failure before they have the commit (the ref, the git server, the spec) has another cause.
func blamesCommit(v request.Verdict) bool {
	if v.Reason == v1alpha1.ReasonProgressDeadlineExceeded {
		return slices.ContainsFunc(v.Behind, rejectsCommit)
	}
	failed := slices.DeleteFunc(slices.Clone(v.Behind), func(b request.Behind) bool { return !b.Fails() })
	i := slices.IndexFunc(failed, func(b request.Behind) bool { return b.Reason == v.Reason })
	switch {
	case i < 0 || v.Gateways.Failed == 0:
		return false
	case len(failed) > v.Gateways.Failed: // some reports are about an earlier commit
		return rejectsCommit(failed[i])
	}
	return slices.ContainsFunc(failed, rejectsCommit)
}

// rejectsCommit reports whether a gateway rejects the content of the commit.
func rejectsCommit(b request.Behind) bool { return b.Reason.Cause() == v1alpha1.CauseCommit }
