package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/verb"
)

// limits are how long a wait may take.
type limits struct{ timeout, empty time.Duration }

func waitFlags(command *cobra.Command) *limits {
	l := &limits{}
	command.Flags().DurationVar(&l.timeout, "timeout", 15*time.Minute, "how long to wait at most; longer than spec.progressDeadline, so that its verdict is heard")
	command.Flags().DurationVar(&l.empty, "timeout-empty", time.Minute, "how long to wait for a first gateway")
	return l
}

func (c *cli) wait() *cobra.Command {
	command := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until every gateway runs what is asked for",
		Long: `Wait until every gateway runs what is asked for.

Every gateway counts: it runs the commit of the desired ref, for today's spec, verified, and has dealt with the last request.
The wait ends at once where a gateway cannot get there by trying again (1), where another ref is asked for meanwhile (4),
and where syncing is paused (6). At the end of --timeout it is 6 where all that is missing waits for a person or a Designer,
else 3. On a terminal it tells what is missing; in a pipe it says nothing until the end.`,
		Example: `  # until the gateways run what is wanted now
  stoker wait plant

  # until they run this ref; where another one is wanted by then, that is said at once
  stoker wait plant --ref v2.4.0 --timeout 5m`,
		Args: cobra.ExactArgs(1),
	}
	ref := command.Flags().String("ref", "", "the ref that is waited for; left out: the one that is wanted when the wait begins")
	l := waitFlags(command)
	var form *string
	command.RunE = func(command *cobra.Command, args []string) error {
		p, err := c.connect()
		if err != nil {
			return err
		}
		v, err := c.await(command.Context(), p, args[0], *ref, l)
		if v.Phase == "" {
			return err
		}
		return errors.Join(c.print(*form, result{
			table: func(w io.Writer) {
				if err == nil {
					fmt.Fprintln(w, clean(v.Message))
				}
			},
			data: v, names: []string{v1alpha1.Kind + "/" + args[0]},
		}), err)
	}
	form = outputs(command)
	return command
}

// watcher follows one GatewaySync.
type watcher struct {
	*cli
	place
	name  string
	ref   string // "" until it is known
	uid   types.UID
	empty time.Time // since when there is no gateway
	said  string
	blind bool // reports cannot be read, and that was said
}

// await waits for gateways to run ref, or, where that is "", what is wanted at the beginning. The verdict is the last one;
// the error says how it ended where it is not what was waited for.
func (c *cli) await(ctx context.Context, p place, name, ref string, l *limits) (verb.Verdict, error) {
	if l.timeout <= 0 || l.empty < 0 {
		return verb.Verdict{}, outcome(exitUsage, "--timeout must be more than nothing, and --timeout-empty not less")
	}
	w := &watcher{cli: c, place: p, name: name, ref: ref}
	waiting, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	var last verb.Verdict
	for n := 0; ; n++ {
		v, err := w.look(waiting)
		switch {
		case err == nil:
			last = v
			w.tell(v.Message)
			if ended, err := w.ended(v, l); ended {
				return v, err
			}
		case waiting.Err() == nil && !passing(err):
			return last, p.explain(name, err)
		case waiting.Err() == nil:
			w.tell("the API server does not answer, trying again: " + err.Error())
		}
		if !pause(waiting, interval(n)) {
			break
		}
	}
	if ctx.Err() != nil {
		return last, fmt.Errorf("interrupted: %s", last.Message)
	}
	return last, w.late(last, l)
}

// interval is the pause after the look n: short at first, when most of it happens.
func interval(n int) time.Duration {
	return min(250*time.Millisecond+time.Duration(n)*50*time.Millisecond, 2*time.Second)
}

// passing reports whether an error may be gone by itself: the API server is away, or busy.
func passing(err error) bool {
	if _, answered := errors.AsType[*apierrors.StatusError](err); !answered {
		_, undecodable := errors.AsType[*kube.UndecodableError](err)
		return !undecodable
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}

const maxLook = 10 * time.Second

// look asks where the gateways stand.
func (w *watcher) look(ctx context.Context) (verb.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, maxLook)
	defer cancel()
	gs, err := kube.GatewaySyncs(w.Dynamic, w.namespace).Get(ctx, w.name)
	if err != nil {
		return verb.Verdict{}, err
	}
	if w.uid != "" && gs.UID != w.uid {
		return verb.Verdict{}, outcome(exitFailed, "GatewaySync %s was deleted and made anew meanwhile", w.name)
	}
	w.uid = gs.UID
	v := verb.Judge(gs, w.ref, nil)
	if w.ref == "" {
		w.ref = v.Ref
	}
	for _, b := range v.Behind { // a failure counts for a request only once the gateway has dealt with it
		if v.Phase == verb.Progressing && b.Reason.Class() == v1alpha1.ClassStalled {
			return verb.Judge(gs, w.ref, w.reports(ctx)), nil
		}
	}
	return v, nil
}

// reports are the SyncReports, by pod; none where they cannot be read.
func (w *watcher) reports(ctx context.Context) map[string]*v1alpha1.SyncReport {
	list, _, err := kube.SyncReports(w.Dynamic, w.namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelCRName + "=" + w.name})
	if err != nil {
		if !w.blind && ctx.Err() == nil {
			fmt.Fprintf(w.talk, "SyncReports cannot be read, so a failure is known only once all gateways have dealt with the request: %s\n", clean(err.Error()))
			w.blind = true
		}
		return nil
	}
	reports := make(map[string]*v1alpha1.SyncReport, len(list))
	for _, r := range list {
		reports[r.Name] = r
	}
	return reports
}

// ended reports whether a verdict ends the wait, and as what.
func (w *watcher) ended(v verb.Verdict, l *limits) (bool, error) {
	if v.Reason != v1alpha1.ReasonNoGateways || v.Phase != verb.Progressing {
		w.empty = time.Time{}
	} else if w.empty.IsZero() {
		w.empty = time.Now()
	}
	switch v.Phase {
	case verb.Succeeded:
		return true, nil
	case verb.Overtaken:
		return true, outcome(exitSuperseded, "superseded: %s", v.Message)
	case verb.Held:
		return true, outcome(exitHeld, "held: %s", v.Message)
	case verb.Failed:
		code := exitFailed
		if v.Reason == v1alpha1.ReasonRefNotAllowed {
			code = exitForbidden
		}
		return true, outcome(code, "failed: %s: %s%s%s", v.Reason, v.Message, others(v), help(v.Reason))
	}
	if !w.empty.IsZero() && time.Since(w.empty) >= l.empty {
		return true, w.none(l.empty)
	}
	return false, nil
}

func (w *watcher) none(after time.Duration) error {
	return outcome(exitFailed, "no gateway after %s: no pod asks for GatewaySync %s in namespace %s%s", after, w.name, w.namespace, help(v1alpha1.ReasonNoGateways))
}

// late is the end of a wait that took too long.
func (w *watcher) late(v verb.Verdict, l *limits) error {
	switch {
	case v.Phase == "":
		return outcome(exitTimeout, "the API server did not say where GatewaySync %s stands within %s", w.name, l.timeout)
	case v.Reason == v1alpha1.ReasonNoGateways:
		return w.none(l.timeout)
	case v.Waits:
		return outcome(exitHeld, "held after %s: %s%s%s", l.timeout, v.Message, others(v), help(v.Reason))
	}
	return outcome(exitTimeout, "not done after %s: %s%s%s", l.timeout, v.Message, others(v), help(v.Reason))
}

const maxOthers = 20

// others names who is behind, a line each, where it is more than the one that the message names.
func others(v verb.Verdict) string {
	if len(v.Behind) < 2 {
		return ""
	}
	var b strings.Builder
	for i, g := range v.Behind {
		if i == maxOthers {
			fmt.Fprintf(&b, "\n  and %d more", len(v.Behind)-maxOthers)
			break
		}
		b.WriteString("\n  " + cut(g.String()))
	}
	return b.String()
}

// help is where to read on about a reason.
func help(reason v1alpha1.Reason) string {
	for _, r := range v1alpha1.Reasons {
		if r.Reason == reason {
			return "\nWhat to do: docs/troubleshooting.md#" + strings.ToLower(string(reason))
		}
	}
	return ""
}

// tell says on a terminal how far it is, when that is news.
func (w *watcher) tell(line string) {
	if line = oneLine(line); w.live && line != w.said {
		fmt.Fprintf(w.talk, "%s  %s\n", time.Now().Format(time.TimeOnly), line)
		w.said = line
	}
}
