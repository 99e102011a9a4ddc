package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status"
)

type waitFlags struct {
	timeout, emptyTimeout time.Duration
	noRollback            bool // fail if the gateways run the commit of a rollback
}

func addWaitFlags(command *cobra.Command) *waitFlags {
	f := &waitFlags{}
	command.Flags().DurationVar(&f.timeout, "timeout", 15*time.Minute, "maximum time to wait; longer than spec.progressDeadline, to report its result")
	command.Flags().DurationVar(&f.emptyTimeout, "timeout-empty", time.Minute, "maximum time to wait for a first gateway after the status reported none")
	return f
}

func (f *waitFlags) addNoRollback(command *cobra.Command) {
	command.Flags().BoolVar(&f.noRollback, "no-rollback", false, "exit with 1 while a rollback holds back spec.git.ref")
}

func newWaitCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until every gateway runs the desired ref",
		Long: `Wait until every gateway runs the desired ref, or, with configsync/NAME, until it is applied and healthy.

The wait succeeds when every gateway runs the commit of the desired ref for the current spec, verified, and has handled the
last request. It ends early if a gateway reports an error that a retry does not fix (1), if another ref is requested (4), or
if syncing is paused (6); with --no-rollback also if the gateways run the commit of a rollback (1). After --timeout the
exit code is 6 if the remaining gateways are held (an approval, a window, a Designer), and 3 otherwise. It reads the status at least
once, however short --timeout is.`,
		Example: `  # wait until the gateways run the desired ref
  stoker wait line

  # wait until they run this ref; fail at once if another ref is desired
  stoker wait line --ref v2.4.0 --timeout 5m

  # in a hook Job of Argo CD, after set-ref --application
  stoker wait line --application argocd/line`,
		Args: cobra.ExactArgs(1),
	}
	ref := command.Flags().String("ref", "", "ref to wait for (default: the desired ref when the wait begins)")
	commit := command.Flags().String("commit", "", "commit to wait for, all 40 digits; the exit code is 4 if another commit is desired")
	flags := addWaitFlags(command)
	flags.addNoRollback(command)
	fromSync := c.addApplicationFlags(command)
	format := output.AddFlag(command.Flags())
	command.RunE = func(command *cobra.Command, args []string) error {
		if *commit != "" && !syntax.IsCommit(*commit) {
			return exit.Errorf(exit.Usage, "--commit %.80q is not a commit: write all its 40 hexadecimal digits", *commit)
		}
		p, err := c.connectTo(args[0])
		if err != nil {
			return err
		}
		if fromSync.used() {
			if *ref != "" {
				return exit.Errorf(exit.Usage, "--ref and --application cannot be used together")
			}
			o, err := p.object(command.Context())
			if err != nil {
				return err
			}
			sync, _, err := fromSync.findSync(command.Context(), p, desiredref.InputsOf(o))
			if err != nil {
				return err
			}
			*ref = sync.Commit
		}
		v, err := c.await(command.Context(), p, *ref, *commit, flags)
		if v.Phase == "" {
			return err
		}
		r := output.Result{Data: v, Names: []string{p.kind.Name + "/" + p.name}, Text: func(w io.Writer) {
			if err == nil {
				fmt.Fprintln(w, output.Clean(v.Message))
			}
		}}
		return errors.Join(r.Print(c.stdout, *format), err)
	}
	return command
}

// waiter polls the status of the object of its target.
type waiter struct {
	c *cli
	target
	ref    string // "" until the first poll, if the wait is for the desired ref
	commit string // "" for any
	uid    types.UID
	// blockedRef is the ref of the spec while a rollback is in force, and blockedCommit the commit that the rollback blocks. rollbackOf is the
	// ref of the spec if ref is that of a rollback.
	blockedRef, blockedCommit, rollbackOf string

	noGatewaysSince time.Time // zero while there are gateways
	lastProgress    string
	warned          bool // a warning about an unreadable SyncTarget was printed
}

// blockedByRollback returns the ref of the spec and its blocked commit while a rollback is in force, and "" otherwise.
func blockedByRollback(o v1alpha1.Requestable, v request.Verdict) (ref, commit string) {
	q := desiredref.InputsOf(o)
	d, err := q.Desired("")
	if err != nil || d.Unless == "" || v.Ref != d.Ref {
		return "", ""
	}
	return q.Spec, d.Unless
}

// await waits until the gateways run ref, or the desired ref of the first poll if ref is "", at commit unless it is "". It
// returns the last verdict, and an error if the wait ended in another way.
func (c *cli) await(ctx context.Context, p target, ref, commit string, flags *waitFlags) (request.Verdict, error) {
	if flags.timeout <= 0 || flags.emptyTimeout < 0 {
		return request.Verdict{}, exit.Errorf(exit.Usage, "--timeout must be positive, and --timeout-empty not negative")
	}
	w := &waiter{c: c, target: p, ref: ref, commit: commit}
	limited, cancel := context.WithTimeout(ctx, flags.timeout)
	defer cancel()
	last := request.Verdict{Message: "the status of " + p.kind.Name + " " + p.name + " was not read yet"}
	for n := 0; ; n++ {
		pollCtx := limited
		if n == 0 { // even the shortest wait reports the status
			pollCtx = ctx
		}
		v, err := w.poll(pollCtx)
		switch {
		case err == nil:
			last = v
			w.printProgress(v.Message)
			if finished, err := w.finished(v, flags); finished {
				return v, err
			}
		case pollCtx.Err() == nil && permanent(err):
			return last, p.explain(p.name, err)
		case pollCtx.Err() == nil:
			w.printProgress("the API server does not answer, trying again: " + err.Error())
		}
		if !backoff.Wait(limited, pollInterval(n)) {
			break
		}
	}
	if ctx.Err() != nil {
		return last, fmt.Errorf("interrupted: %s", last.Message)
	}
	return last, w.timedOut(last, flags)
}

// permanent reports whether another poll would end with err, too.
func permanent(err error) bool {
	_, ended := errors.AsType[*exit.Error](err)
	return ended || !kube.Transient(err)
}

// pollInterval returns the pause after poll n. It is short at first, when most changes happen.
func pollInterval(n int) time.Duration {
	return min(250*time.Millisecond+time.Duration(n)*50*time.Millisecond, 2*time.Second)
}

// pollTimeout bounds one poll.
const pollTimeout = 10 * time.Second

// poll reads the object and returns the current verdict.
func (w *waiter) poll(ctx context.Context) (request.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	o, err := w.setter().Get(ctx, w.namespace, w.name)
	if err != nil {
		return request.Verdict{}, err
	}
	if w.uid != "" && o.GetUID() != w.uid {
		return request.Verdict{}, exit.Errorf(exit.Failed, "%s %s was deleted and recreated", w.kind.Name, w.name)
	}
	w.uid = o.GetUID()
	v, err := w.verdict(ctx, o)
	if w.rollbackOf != "" && v.Phase == request.Overtaken && v.Ref == w.rollbackOf { // the ref of the spec moved on, which ended the rollback
		w.ref, w.rollbackOf = v.Ref, ""
		v, err = w.verdict(ctx, o)
	}
	if err != nil && ctx.Err() != nil { // the age of the status cannot replace an answer that did not come in time
		return request.Verdict{}, err
	}
	v = request.At(o, v, w.commit)
	if err != nil && !w.warned {
		fmt.Fprintln(w.c.stderr, output.Clean(err.Error()))
		w.warned = true
	}
	w.blockedRef, w.blockedCommit = blockedByRollback(o, v)
	if w.ref == "" {
		w.ref, w.rollbackOf = v.Ref, w.blockedRef
	}
	return v, nil
}

// verdict returns the verdict on an object for w.ref. The verdict is valid even with an error.
func (w *waiter) verdict(ctx context.Context, o v1alpha1.Requestable) (request.Verdict, error) {
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		return request.ReadWithLock(ctx, w.Clients, o, w.ref)
	case *v1alpha1.ConfigSync:
		return request.ReadConfig(o, w.ref), nil
	}
	return request.Verdict{}, nil
}

// finished reports whether a verdict ends the wait. The error is nil if the wait succeeded.
func (w *waiter) finished(v request.Verdict, flags *waitFlags) (bool, error) {
	if v.Reason != v1alpha1.ReasonNoGateways || v.Phase != request.Progressing {
		w.noGatewaysSince = time.Time{}
	} else if w.noGatewaysSince.IsZero() {
		w.noGatewaysSince = time.Now()
	}
	switch v.Phase {
	case request.Succeeded:
		if flags.noRollback && w.blockedRef != "" {
			return true, exit.Errorf(exit.Failed, "failed: %s: %s of %s is blocked by a rollback to %s, until %s moves on; to run it anyway: stoker set-ref %s %s%s",
				v1alpha1.ReasonRolledBack, syntax.ShortCommit(w.blockedCommit), w.blockedRef, syntax.ShortCommit(v.Ref), w.blockedRef, w.argument(), w.blockedRef, troubleshootingLink(v1alpha1.ReasonRolledBack))
		}
		return true, nil
	case request.Overtaken:
		return true, exit.Errorf(exit.Superseded, "superseded: %s", v.Message)
	case request.Paused:
		if v.Reason == v1alpha1.ReasonPaused {
			return true, exit.Errorf(exit.Held, "%s; to continue: stoker resume, or set paused to false in the manifest", v.Message)
		}
		return true, exit.Errorf(exit.Held, "held: %s: %s", v.Reason, v.Message)
	case request.Failed:
		code := exit.Failed
		if v.Reason == v1alpha1.ReasonRefNotAllowed {
			code = exit.Forbidden
		}
		return true, exit.Errorf(code, "failed: %s: %s%s%s", v.Reason, v.Message, listBehind(v), troubleshootingLink(v.Reason))
	}
	if !w.noGatewaysSince.IsZero() && time.Since(w.noGatewaysSince) >= flags.emptyTimeout {
		return true, w.noGateways(flags.emptyTimeout)
	}
	return false, nil
}

// noGateways returns the error of a wait that ended after d because there is no gateway.
func (w *waiter) noGateways(d time.Duration) error {
	return exit.Errorf(exit.Failed, "no gateway after %s in namespace %s: %s%s", d, w.namespace, status.NoGateways(w.name), troubleshootingLink(v1alpha1.ReasonNoGateways))
}

// timedOut returns the error of a wait that timed out with the verdict v.
func (w *waiter) timedOut(v request.Verdict, flags *waitFlags) error {
	switch {
	case v.Phase == "":
		return exit.Errorf(exit.Timeout, "the status of %s %s could not be read within %s", w.kind.Name, w.name, flags.timeout)
	case v.Reason == v1alpha1.ReasonNoGateways:
		return w.noGateways(flags.timeout)
	case v.Phase == request.Held:
		return exit.Errorf(exit.Held, "held after %s: %s%s%s", flags.timeout, v.Message, listBehind(v), troubleshootingLink(v.Reason))
	}
	return exit.Errorf(exit.Timeout, "not done after %s: %s%s%s", flags.timeout, v.Message, listBehind(v), troubleshootingLink(v.Reason))
}

// maxListed bounds the gateways that a message lists.
const maxListed = 20

// listBehind lists the gateways that are behind, one per line. It returns "" if there is at most one, which the message of v
// names, or if no commit is desired: then the gateways run the one before.
func listBehind(v request.Verdict) string {
	if len(v.Behind) < 2 || v.Commit == "" {
		return ""
	}
	var b strings.Builder
	for _, g := range v.Behind[:min(len(v.Behind), maxListed)] {
		b.WriteString("\n  " + output.Shorten(g.String()))
	}
	if more := len(v.Behind) - maxListed; more > 0 {
		fmt.Fprintf(&b, "\n  and %d more", more)
	}
	return b.String()
}

// printProgress prints a line on a terminal, unless it is the same as the last one.
func (w *waiter) printProgress(line string) {
	if line = output.OneLine(line); w.c.interactive && line != w.lastProgress {
		fmt.Fprintf(w.c.stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), line)
		w.lastProgress = line
	}
}
