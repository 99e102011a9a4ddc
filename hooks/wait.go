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
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// waitFlags holds the flags of a wait.
type waitFlags struct {
	timeout, emptyTimeout time.Duration
	noRollback            bool // fail if the gateways run what a rollback went back to
}

func addWaitFlags(command *cobra.Command) *waitFlags {
	l := &waitFlags{}
	command.Flags().DurationVar(&l.timeout, "timeout", 15*time.Minute, "maximum time to wait; longer than spec.progressDeadline, to report its result")
	command.Flags().DurationVar(&l.emptyTimeout, "timeout-empty", time.Minute, "maximum time to wait for a first gateway after the status reported none")
	return l
}

// addNoRollback adds the flag --no-rollback.
func (l *waitFlags) addNoRollback(command *cobra.Command) {
	command.Flags().BoolVar(&l.noRollback, "no-rollback", false, "exit with 1 while a rollback holds back spec.git.ref")
}

func (c *cli) wait() *cobra.Command {
	command := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until every gateway runs the desired ref",
		Long: `Wait until every gateway runs the desired ref, or, with configsync/NAME, until it is applied and healthy.

The wait succeeds when every gateway runs the commit of the desired ref for the current spec, verified, and has handled the
last request. It ends early if a gateway reports an error that a retry does not fix (1), if another ref is requested (4), or
if syncing is paused (6); with --no-rollback also if the gateways run the commit of a rollback (1). After --timeout the
exit code is 6 if the remaining gateways wait for an approval or a Designer session, and 3 otherwise. On a terminal the
command prints its progress. It reads the status at least once, however short --timeout is.`,
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
	l := addWaitFlags(command)
	l.addNoRollback(command)
	from := c.addApplicationFlags(command)
	var form *string
	command.RunE = func(command *cobra.Command, args []string) error {
		if *commit != "" && !v1alpha1.IsCommit(*commit) {
			return exitErrorf(exitUsage, "--commit %.80q is not a commit: write all its 40 hexadecimal digits", *commit)
		}
		p, err := c.connect()
		if err != nil {
			return err
		}
		if p, err = p.of(args[0]); err != nil {
			return err
		}
		if from.used() {
			if *ref != "" {
				return exitErrorf(exitUsage, "--ref and --application: name one of them")
			}
			o, err := p.object(command.Context())
			if err != nil {
				return err
			}
			found, _, err := from.findSync(command.Context(), p, o.Requests())
			if err != nil {
				return err
			}
			*ref = found.Commit
		}
		v, err := c.await(command.Context(), p, *ref, *commit, l)
		if v.Phase == "" {
			return err
		}
		return errors.Join(c.print(*form, result{
			table: func(w io.Writer) {
				if err == nil {
					fmt.Fprintln(w, clean(v.Message))
				}
			},
			data: v, names: []string{p.kind.Name + "/" + p.name},
		}), err)
	}
	form = addOutputFlag(command)
	return command
}

// waiter waits for the object of its target.
type waiter struct {
	*cli
	target
	ref             string // "" until it is known
	commit          string // "" for any
	uid             types.UID
	noGatewaysSince time.Time // when the lack of gateways was first seen
	lastProgress    string
	warned          bool // the error about unreadable reports was printed

	heldOff    string // the ref of the spec while a rollback is in force
	rollbackOf string // the ref of the spec if ref is that of a rollback
}

// heldOff returns the ref of the spec while a rollback is in force, and "" otherwise.
func heldOff(o v1alpha1.Requestable, v request.Verdict) string {
	q := o.Requests()
	if q.Unless() == "" || v.Ref == q.Spec || v.Ref != q.Annotations[v1alpha1.AnnotationRequestedRef] {
		return ""
	}
	return q.Spec
}

// await waits until the gateways run ref, or the desired ref of the first look if ref is "", at commit unless it is "". It
// returns the last verdict. The error says how the wait ended unless the gateways got there.
func (c *cli) await(ctx context.Context, p target, ref, commit string, l *waitFlags) (request.Verdict, error) {
	if l.timeout <= 0 || l.emptyTimeout < 0 {
		return request.Verdict{}, exitErrorf(exitUsage, "--timeout must be positive, and --timeout-empty not negative")
	}
	w := &waiter{cli: c, target: p, ref: ref, commit: commit}
	waiting, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	last := request.Verdict{Message: "the status of " + p.kind.Name + " " + p.name + " was not read yet"}
	for n := 0; ; n++ {
		looking := waiting
		if n == 0 { // even the shortest wait reports where the gateways stand
			looking = ctx
		}
		v, err := w.poll(looking)
		switch {
		case err == nil:
			last = v
			w.printProgress(v.Message)
			if ended, err := w.finished(v, l); ended {
				return v, err
			}
		case looking.Err() == nil && !kube.Passing(err):
			return last, p.explain(p.name, err)
		case looking.Err() == nil:
			w.printProgress("the API server does not answer, trying again: " + err.Error())
		}
		if !backoff.Wait(waiting, pollInterval(n)) {
			break
		}
	}
	if ctx.Err() != nil {
		return last, fmt.Errorf("interrupted: %s", last.Message)
	}
	return last, w.timedOut(last, l)
}

// pollInterval returns the pause after look n: short at first, when most of the changes happen.
func pollInterval(n int) time.Duration {
	return min(250*time.Millisecond+time.Duration(n)*50*time.Millisecond, 2*time.Second)
}

const pollTimeout = 10 * time.Second

// poll returns the current verdict.
func (w *waiter) poll(ctx context.Context) (request.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	o, err := w.setter().Get(ctx, w.namespace, w.name)
	if err != nil {
		return request.Verdict{}, err
	}
	if w.uid != "" && o.GetUID() != w.uid {
		return request.Verdict{}, exitErrorf(exitFailed, "%s %s was deleted and recreated", w.kind.Name, w.name)
	}
	w.uid = o.GetUID()
	v, err := w.verdict(ctx, o)
	if w.rollbackOf != "" && v.Phase == request.Overtaken && v.Ref == w.rollbackOf { // the spec's ref has moved on, which ended the rollback
		w.ref, w.rollbackOf = v.Ref, ""
		v, err = w.verdict(ctx, o)
	}
	v = request.At(o, v, w.commit)
	if err != nil && !w.warned && ctx.Err() == nil {
		fmt.Fprintln(w.stderr, clean(err.Error()))
		w.warned = true
	}
	w.heldOff = heldOff(o, v)
	if w.ref == "" {
		w.ref, w.rollbackOf = v.Ref, w.heldOff
	}
	return v, nil
}

// verdict reads how far an object is with the ref that is waited for. Of a ConfigSync, that is its status alone.
func (w *waiter) verdict(ctx context.Context, o v1alpha1.Requestable) (request.Verdict, error) {
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		return request.Look(ctx, w.Clients, o, w.ref)
	case *v1alpha1.ConfigSync:
		return request.ReadConfig(o, w.ref), nil
	}
	return request.Verdict{}, nil
}

// finished reports whether a verdict ends the wait, and with which error.
func (w *waiter) finished(v request.Verdict, l *waitFlags) (bool, error) {
	if v.Reason != v1alpha1.ReasonNoGateways || v.Phase != request.Progressing {
		w.noGatewaysSince = time.Time{}
	} else if w.noGatewaysSince.IsZero() {
		w.noGatewaysSince = time.Now()
	}
	switch v.Phase {
	case request.Succeeded:
		if l.noRollback && w.heldOff != "" {
			return true, exitErrorf(exitFailed, "failed: %s: %s is held off by a rollback to %s, until it moves on; to have it all the same: stoker set-ref %s %s%s",
				v1alpha1.ReasonRolledBack, w.heldOff, request.Short(v.Ref), w.argument(), w.heldOff, troubleshootingLink(v1alpha1.ReasonRolledBack))
		}
		return true, nil
	case request.Overtaken:
		return true, exitErrorf(exitSuperseded, "superseded: %s", v.Message)
	case request.Paused:
		return true, exitErrorf(exitHeld, "%s", pausedMessage(v))
	case request.Failed:
		code := exitFailed
		if v.Reason == v1alpha1.ReasonRefNotAllowed {
			code = exitForbidden
		}
		return true, exitErrorf(code, "failed: %s: %s%s%s", v.Reason, v.Message, listBehind(v), troubleshootingLink(v.Reason))
	}
	if !w.noGatewaysSince.IsZero() && time.Since(w.noGatewaysSince) >= l.emptyTimeout {
		return true, w.noGateways(l.emptyTimeout)
	}
	return false, nil
}

// pausedMessage says what is paused, and what to do.
func pausedMessage(v request.Verdict) string {
	switch v.Reason {
	case v1alpha1.ReasonPaused:
		return fmt.Sprintf("%s; to go on: stoker resume, or set paused to false where the manifest is kept", v.Message)
	default:
		return fmt.Sprintf("held: %s: %s", v.Reason, v.Message)
	}
}

func (w *waiter) noGateways(after time.Duration) error {
	return exitErrorf(exitFailed, "no gateway after %s in namespace %s: %s%s", after, w.namespace, v1alpha1.NoGateways(w.name), troubleshootingLink(v1alpha1.ReasonNoGateways))
}

// timedOut returns the error of a wait that timed out.
func (w *waiter) timedOut(v request.Verdict, l *waitFlags) error {
	switch {
	case v.Phase == "":
		return exitErrorf(exitTimeout, "the status of %s %s could not be read within %s", w.kind.Name, w.name, l.timeout)
	case v.Reason == v1alpha1.ReasonNoGateways:
		return w.noGateways(l.timeout)
	case v.Phase == request.Held:
		return exitErrorf(exitHeld, "held after %s: %s%s%s", l.timeout, v.Message, listBehind(v), troubleshootingLink(v.Reason))
	}
	return exitErrorf(exitTimeout, "not done after %s: %s%s%s", l.timeout, v.Message, listBehind(v), troubleshootingLink(v.Reason))
}

const maxListed = 20

// listBehind lists the gateways that are behind, one per line, if there are several.
func listBehind(v request.Verdict) string {
	if len(v.Behind) < 2 {
		return ""
	}
	var b strings.Builder
	for i, g := range v.Behind {
		if i == maxListed {
			fmt.Fprintf(&b, "\n  and %d more", len(v.Behind)-maxListed)
			break
		}
		b.WriteString("\n  " + cut(g.String()))
	}
	return b.String()
}

// printProgress prints the progress on a terminal when it changes.
func (w *waiter) printProgress(line string) {
	if line = oneLine(line); w.interactive && line != w.lastProgress {
		fmt.Fprintf(w.stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), line)
		w.lastProgress = line
	}
}
