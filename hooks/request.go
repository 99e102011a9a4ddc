package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/application"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
)

// requester writes requests. It holds the flags that the commands for requests share.
type requester struct {
	c         *cli
	output    *string
	by, id    string
	commit    string // commit that the ref must resolve to
	role      string // ClusterRole that grants the right to write the request; "" for stoker-setter
	wait      bool
	waitFlags *waitFlags
}

// newRequester returns the requester of a command, and makes run the function of the command.
func (c *cli) newRequester(command *cobra.Command, run func(context.Context, *requester, []string) error) *requester {
	r := &requester{c: c, output: output.AddFlag(command.Flags())}
	command.RunE = func(command *cobra.Command, args []string) error { return run(command.Context(), r, args) }
	return r
}

// addSenderFlags adds the flags of a request that names its sender, and on whose result the command can wait.
func (r *requester) addSenderFlags(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&r.by, "by", sender.CLI, "sender of the request: "+strings.Join(sender.Names(), ", "))
	f.StringVar(&r.id, "id", "", "id that distinguishes a repeated request from a new one, such as the name of a Job or promotion")
	f.BoolVar(&r.wait, "wait", false, "wait until the gateways run the ref, as the command wait does")
	r.waitFlags = addWaitFlags(command)
}

// requestWithdrawn is printed for a request that was withdrawn.
const requestWithdrawn = "request withdrawn"

func newSetRefCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "set-ref NAME [REF]",
		Short: "Request a ref: a branch, a tag or a commit",
		Long: `Request a ref: a branch, a tag or a commit.

Of a commit in the history, the first 7 digits suffice. The request is in force until the ref of the spec changes or another ref is
requested. Requesting the ref of the spec ends an earlier request. Requesting the desired ref again only makes the lead poll git; with
--id, a repeated request changes nothing. For a ConfigSync, NAME is configsync/NAME.

With --commit, the ref must resolve to that commit. If a tag was moved, the request fails with RefMoved and the gateways keep
their files. Moving the tag back does not revive a refused one.

With --withdraw, the request in force ends, or the one with --id, and never comes back; what was in force before is desired again.
If a gateway runs the commit already, nothing changes: roll back, or request another ref.

In a hook Job of Argo CD, use --application instead of REF. It requests the commit of the sync, which must be a commit of
spec.git.repo. The id of the request contains the name of the Job, the start of the sync and the first digits of the commit,
so a repeated Job requests only once. If the sync is already over, the command requests nothing and exits with 4.`,
		Example: `  # run the tag v2.4.0 on all gateways of the GatewaySync line, and wait for it
  stoker set-ref line v2.4.0 --wait

  # run the tag v2.4.0 only if it is still the commit that was tested
  stoker set-ref line v2.4.0 --commit 3abea812817f08376beec80744660b4fbcb76fc2 --wait

  # withdraw the request of a promotion that was aborted
  stoker set-ref line --withdraw --id "$PROMOTION"

  # in a Job that may be repeated
  stoker set-ref line "$REVISION" --by argocd --id "$JOB_NAME"

  # in a hook Job of Argo CD: request the commit that is being synced
  stoker set-ref line --application argocd/line

  # follow the branch of spec.git.ref again
  stoker set-ref line main`,
		Args: cobra.RangeArgs(1, 2),
	}
	fromSync := c.addApplicationFlags(command)
	withdraw := command.Flags().Bool("withdraw", false, "end the request, unless a gateway runs its commit already")
	r := c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		ref := ""
		if len(args) == 2 {
			ref = args[1]
		}
		switch {
		case *withdraw && (len(args) == 2 || fromSync.used() || r.commit != ""):
			return exit.Errorf(exit.Usage, "--withdraw cannot be used together with REF, --commit or --application")
		case *withdraw:
			ask := request.Withdrawal(r.id)
			return r.send(ctx, args[0], requestWithdrawn, func(ctx context.Context, p target) (request.Answer, error) {
				return p.setter().Ask(ctx, p.namespace, p.name, ask)
			})
		case fromSync.used() && len(args) == 2:
			return exit.Errorf(exit.Usage, "REF and --application cannot be used together")
		case fromSync.used():
			var err error
			if ref, err = r.syncedCommit(ctx, command, args[0], fromSync); err != nil {
				return err
			}
		case ref == "":
			return exit.Errorf(exit.Usage, "the ref is empty: name a branch, a tag or a commit")
		}
		return r.send(ctx, args[0], "desired ref set to "+ref, func(ctx context.Context, p target) (request.Answer, error) {
			o, err := p.setter().Get(ctx, p.namespace, p.name)
			if err != nil {
				return request.Answer{}, err
			}
			ask := request.Request{Commit: r.commit, By: r.by, ID: r.id}
			if ask.Ref, err = request.Expand(o, ref); err != nil {
				return request.Answer{}, err
			}
			if r.by == sender.CLI {
				ask.For = p.person(ctx)
			}
			return p.setter().Ask(ctx, p.namespace, p.name, ask)
		})
	})
	r.addSenderFlags(command)
	command.Flags().StringVar(&r.commit, "commit", "", "commit that the ref must resolve to, all 40 digits")
	return command
}

// person returns the name by which the API server knows the user, or "" if it does not tell.
func (p target) person(ctx context.Context) string {
	review, err := p.Core.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "" // the request counts without it
	}
	return review.Status.UserInfo.Username
}

// syncedCommit returns the commit that an Argo CD sync brings. It also sets the sender and the id of the request, unless the
// flags do.
func (r *requester) syncedCommit(ctx context.Context, command *cobra.Command, name string, flags *applicationFlags) (string, error) {
	p, err := r.c.connectTo(name)
	if err != nil {
		return "", err
	}
	o, err := p.object(ctx)
	if err != nil {
		return "", err
	}
	sync, job, err := flags.findSync(ctx, p, desiredref.InputsOf(o))
	if err != nil {
		return "", err
	}
	if !command.Flags().Changed("by") {
		r.by = sender.ArgoCD
	}
	if r.id == "" {
		r.id = requestID(job, sync)
	}
	return sync.Commit, nil
}

// requestID returns the id of a Job's request: its name, the start of the sync and the commit, because a retried sync keeps its
// start but may bring another commit. A Job name that Argo CD generates already holds both, but only the start for a sync of
// several sources.
func requestID(job application.Job, sync application.Sync) string {
	id := job.Name
	hook, generated := application.ParseHookName(job.Name)
	if !generated {
		id += fmt.Sprintf("/%d", sync.Started.Unix())
	}
	if hook.Revision == "" {
		id += "/" + syntax.ShortCommit(sync.Commit)
	}
	return id
}

func newSyncCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "sync NAME",
		Short: "Poll git now, and sync changes",
		Long: `Poll git now, and sync changes.

With --force, agents compare the content of every managed file, repair drift, and make their gateways scan again. A forced sync does
not wait for a maintenance window. It does not deliver a commit that a gateway has rolled back: stoker retry does.

With --confirm-deletion you approve the deletions for which a sync to this commit is held as MassDeletion, on all gateways. It needs
the verb update, which the ClusterRole stoker-edit grants.`,
		Example: `  # poll without waiting for spec.polling.interval
  stoker sync line --wait

  # verify all files, and repair those that were changed on the gateways
  stoker sync line --force

  # approve what commit 1f0c2d3 deletes
  stoker sync line --confirm-deletion=1f0c2d3

  # in the PostSync hook of Argo CD: poll git, and wait until every gateway runs the result
  stoker sync line --wait --no-rollback --by argocd --id "$JOB_UID"`,
		Args: cobra.ExactArgs(1),
	}
	force := command.Flags().Bool("force", false, "compare the content of every managed file, and repair drift")
	confirm := command.Flags().String("confirm-deletion", "", "approve the mass deletion of this `commit` (7 to 40 hexadecimal digits)")
	r := c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		if *confirm != "" && !syntax.IsCommitPrefix(*confirm) {
			return exit.Errorf(exit.Usage, "--confirm-deletion must be 7 to 40 hexadecimal digits of a commit, not %q", *confirm)
		}
		if *confirm != "" {
			r.role = "stoker-edit"
		}
		return r.send(ctx, args[0], "sync requested", func(ctx context.Context, p target) (request.Answer, error) {
			answer, err := p.setter().Ask(ctx, p.namespace, p.name, request.Request{By: r.by, ID: r.id, Force: *force, ConfirmDeletion: *confirm})
			if err != nil {
				return answer, err
			}
			if d, err := desiredref.Of(answer.Object, ""); err == nil && d.Unless != "" {
				answer.Ref = "" // the ref is that of a rollback, which may lapse after the requested poll
			}
			return answer, nil
		})
	})
	r.addSenderFlags(command)
	r.waitFlags.addNoRollback(command)
	return command
}

func newPauseCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "pause NAME",
		Short: "Pause syncing until resume",
		Long: `Pause syncing until resume. Gateways keep their files and may restart; agents still report drift. For configsync/NAME, nothing is
applied, pruned or repaired.`,
		Example: `  stoker pause line
  stoker resume line`,
		Args: cobra.ExactArgs(1),
	}
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		return r.send(ctx, args[0], "is paused", func(ctx context.Context, p target) (request.Answer, error) {
			return p.setter().Pause(ctx, p.namespace, p.name, true)
		})
	})
	return command
}

func newResumeCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:     "resume NAME",
		Short:   "Resume syncing after pause",
		Example: `  stoker resume line`,
		Args:    cobra.ExactArgs(1),
	}
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		return r.send(ctx, args[0], "is not paused", func(ctx context.Context, p target) (request.Answer, error) {
			answer, err := p.setter().Pause(ctx, p.namespace, p.name, false)
			if err == nil && specPaused(answer.Object) {
				return answer, errors.New("spec.paused is true: set it to false in the manifest; these commands never write the spec")
			}
			return answer, err
		})
	})
	return command
}

// specPaused reports whether the spec of an object pauses it.
func specPaused(o v1alpha1.Requestable) bool {
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		return o.Spec.Paused
	case *v1alpha1.ConfigSync:
		return o.Spec.Paused
	}
	return false
}

// send writes a request to the object that arg names, prints the answer with the text done, and waits if the flags say so. write
// writes the request; the API server may get it more than once.
func (r *requester) send(ctx context.Context, arg, done string, write func(context.Context, target) (request.Answer, error)) error {
	r.c.answersAtOnce = false // proposals and snapshots request a change with a flag
	p, err := r.c.connectTo(arg)
	if err != nil {
		return err
	}
	if r.role != "" {
		p.role = r.role
	}
	var answer request.Answer
	if err := p.retry(ctx, func(ctx context.Context) (err error) {
		answer, err = write(ctx, p)
		return err
	}); err != nil {
		return p.explainWrite(p.name, err)
	}
	if answer.Outcome == request.Superseded {
		return exit.Errorf(exit.Superseded, "%s", answer.Message)
	}
	if answer.Ref != "" {
		d, err := desiredref.Of(answer.Object, "")
		if err != nil {
			return err
		}
		if d.Ref != answer.Ref {
			return exit.Errorf(exit.Superseded, "superseded: %s; the desired ref is now %s", answer.Message, d.Ref)
		}
	}
	name := display.ResourceName(answer.Object)
	result := output.Result{Data: display.BareObject(answer.Object), Names: []string{name}, Text: func(w io.Writer) {
		fmt.Fprintln(w, output.Clean(name+" "+answerText(answer, done)))
	}}
	if err := result.Print(r.c.stdout, *r.output); err != nil || !r.wait {
		return err
	}
	v, err := r.c.await(ctx, p, answer.Ref, r.commit, r.waitFlags)
	if err == nil && *r.output == output.Table { // the other formats print one object only
		fmt.Fprintln(r.c.stdout, output.Clean(v.Message))
	}
	return err
}

// answerText returns what a request did. done is the text for a request that changed something.
func answerText(a request.Answer, done string) string {
	switch {
	case a.Outcome == request.Unchanged && a.Message != "" && done == rollbackRequested, a.Outcome != request.Set && done == requestWithdrawn:
		return "unchanged (" + a.Message + ")"
	case a.Message != "":
		return done + " (" + a.Message + ")"
	case a.Outcome == request.Unchanged:
		return done + " (no change)"
	}
	return done
}

func newRetryCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "retry NAME",
		Short: "Retry a commit that was rolled back",
		Long: `Retry a commit that was rolled back.

After a restored snapshot, an automatic rollback or a failed rollout, the gateways do not take that commit again until another one is
requested. Use this command if the commit was not the cause. Automatic rollback is off for the retry: if the commit fails again, a
gateway keeps it.`,
		Example: `  # retry the commit, and wait until the gateways run it
  stoker retry line
  stoker wait line`,
		Args: cobra.ExactArgs(1),
	}
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		return r.send(ctx, args[0], "retry requested", func(ctx context.Context, p target) (request.Answer, error) {
			return p.setter().Retry(ctx, p.namespace, p.name)
		})
	})
	return command
}

func newApproveCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "approve NAME [STAGE]",
		Short: "Approve a stage of a rollout, or delivery outside the maintenance windows",
		Long: `Approve a stage of a rollout, or delivery outside the maintenance windows.

Without STAGE, the command approves the stage that waits; with STAGE, also one that the rollout has not reached. An approval
counts only for the commit that the command prints. With --commit, the command fails if another commit is rolled out by now.

With --window, the gateways follow the desired commit although no maintenance window allows it. The stages still count.

It needs the verb approve on the GatewaySync, which the ClusterRole stoker-approver grants.`,
		Example: `  # see which stage waits for which commit, and approve it
  stoker status line
  stoker approve line

  # approve the stage prod only for the commit that was tested
  stoker approve line prod --commit 1f0c2d3

  # deliver the commit now, outside the maintenance windows
  stoker approve line --window`,
		Args: cobra.RangeArgs(1, 2),
	}
	commit := command.Flags().String("commit", "", "approve only if this `commit` is rolled out (7 to 40 hexadecimal digits)")
	window := command.Flags().Bool("window", false, "let the commit through a closed maintenance window")
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		stage := ""
		if len(args) == 2 {
			stage = args[1]
		}
		if *window && stage != "" {
			return exit.Errorf(exit.Usage, "--window and STAGE cannot be used together")
		}
		r.role = "stoker-approver"
		return r.send(ctx, args[0], "approved", func(ctx context.Context, p target) (request.Answer, error) {
			if *window {
				return p.setter().ApproveWindow(ctx, p.namespace, p.name, *commit, p.person(ctx))
			}
			return p.setter().Approve(ctx, p.namespace, p.name, stage, *commit, p.person(ctx))
		})
	})
	return command
}
