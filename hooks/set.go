package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/application"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
)

// requester holds what the commands that write requests share.
type requester struct {
	*cli
	output    *string
	by, id    string
	commit    string // commit that the ref must resolve to
	role      string // ClusterRole that grants the right to write the request; "" for stoker-setter
	wait      bool
	waitFlags *waitFlags
}

// requests makes command one that writes a request by run.
func (c *cli) requests(command *cobra.Command, run func(context.Context, *requester, []string) error) *requester {
	a := &requester{cli: c}
	command.RunE = func(command *cobra.Command, args []string) error { return run(command.Context(), a, args) }
	a.output = addOutputFlag(command)
	return a
}

// addSenderFlags adds the flags of a request with a sender.
func (a *requester) addSenderFlags(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&a.by, "by", "cli", "sender of the request: "+strings.Join(sender.Names(), ", "))
	f.StringVar(&a.id, "id", "", "id that distinguishes a repeated request from a new one, such as the name of a Job or promotion")
	f.BoolVar(&a.wait, "wait", false, "wait until the gateways run the ref, as the command wait does")
	a.waitFlags = addWaitFlags(command)
}

func (c *cli) setRef() *cobra.Command {
	command := &cobra.Command{
		Use:   "set-ref NAME [REF]",
		Short: "Request a ref: a branch, a tag or a commit",
		Long: `Request a ref: a branch, a tag or a commit.

The command writes the request to annotations of the GatewaySync, or of a ConfigSync: configsync/NAME. It is in force until
the ref of the spec changes or another ref is requested. Requesting the ref of the spec ends an earlier request.
Requesting the desired ref again only makes the lead poll git; with --id, a repeated request changes nothing.

With --commit, the ref must resolve to that commit. If a tag was moved, the request fails with RefMoved and the gateways keep
their files. Moving the tag back does not revive the request; send another one.

In a hook Job of Argo CD, use --application instead of REF. It requests the commit of the sync, which must be a commit of
spec.git.repo. The id of the request contains the name of the Job, the start of the sync and the first digits of the commit,
so a repeated Job requests only once. If the sync is already over, the command requests nothing and exits with 4.`,
		Example: `  # run the tag v2.4.0 on all gateways of the GatewaySync line, and wait for it
  stoker set-ref line v2.4.0 --wait

  # run the tag v2.4.0 only if it is still the commit that was tested
  stoker set-ref line v2.4.0 --commit 3abea812817f08376beec80744660b4fbcb76fc2 --wait

  # in a Job that may be repeated
  stoker set-ref line "$REVISION" --by argocd --id "$JOB_NAME"

  # in a hook Job of Argo CD: request the commit that is being synced
  stoker set-ref line --application argocd/line

  # follow the branch of spec.git.ref again
  stoker set-ref line main`,
		Args: cobra.RangeArgs(1, 2),
	}
	var from *applicationFlags
	a := c.requests(command, func(ctx context.Context, got *requester, args []string) error {
		ref := ""
		if len(args) == 2 {
			ref = args[1]
		}
		switch {
		case from.used() && len(args) == 2:
			return exitErrorf(exitUsage, "REF and --application exclude each other")
		case from.used():
			var err error
			if ref, err = got.syncedCommit(ctx, command, args[0], from); err != nil {
				return err
			}
		case ref == "":
			return exitErrorf(exitUsage, "the ref is empty: name a branch, a tag or a commit")
		}
		return got.send(ctx, args[0], "desired ref set to "+ref, func(ctx context.Context, p target) (request.Answer, error) {
			return p.setter().Ask(ctx, p.namespace, p.name, request.Request{Ref: ref, Commit: got.commit, By: got.by, ID: got.id})
		})
	})
	a.addSenderFlags(command)
	command.Flags().StringVar(&a.commit, "commit", "", "commit that the ref must resolve to, all 40 digits")
	from = c.addApplicationFlags(command)
	return command
}

// syncedCommit returns the commit of an Argo CD sync. It also sets sender and id if the flags do not.
func (a *requester) syncedCommit(ctx context.Context, command *cobra.Command, name string, from *applicationFlags) (string, error) {
	p, err := a.connect()
	if err != nil {
		return "", err
	}
	if p, err = p.of(name); err != nil {
		return "", err
	}
	o, err := p.object(ctx)
	if err != nil {
		return "", err
	}
	found, job, err := from.findSync(ctx, p, o.Requests())
	if err != nil {
		return "", err
	}
	if !command.Flags().Changed("by") {
		a.by = "argocd"
	}
	if a.id == "" {
		a.id = requestID(job, found)
	}
	return found.Commit, nil
}

// requestID returns the id of a Job's request. A retried sync keeps its start time but may bring another commit, so the id needs
// both. The Job name that Argo CD generates holds both, except for a sync of several sources, for which it holds only the start
// time.
func requestID(job application.Job, found application.Sync) string {
	id := job.Name
	made, named := application.ParseMade(job.Name)
	if !named {
		id += fmt.Sprintf("/%d", found.Started.Unix())
	}
	if made.Revision == "" {
		id += "/" + request.Short(found.Commit)
	}
	return id
}

func (c *cli) sync() *cobra.Command {
	command := &cobra.Command{
		Use:   "sync NAME",
		Short: "Poll git now, and sync changes",
		Long: `Poll git now, and sync changes.

With --force, agents compare the content of every managed file, repair drift, and make their gateways scan again. A forced sync does not wait for a maintenance window.

With --confirm-deletion you approve the deletions for which a sync to this commit is held as MassDeletion, on all gateways.
It approves no other commit.`,
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
	a := c.requests(command, func(ctx context.Context, got *requester, args []string) error {
		if *confirm != "" && !v1alpha1.IsCommitPrefix(*confirm) {
			return fmt.Errorf("--confirm-deletion must be 7 to 40 hexadecimal digits of a commit, not %q", *confirm)
		}
		return got.send(ctx, args[0], "sync requested", func(ctx context.Context, p target) (request.Answer, error) {
			answer, err := p.setter().Ask(ctx, p.namespace, p.name, request.Request{By: got.by, ID: got.id, Force: *force, ConfirmDeletion: *confirm})
			if err == nil && answer.Object.Requests().Unless() != "" {
				answer.Ref = "" // the ref is that of a rollback, which may lapse after the requested poll
			}
			return answer, err
		})
	})
	a.addSenderFlags(command)
	a.waitFlags.addNoRollback(command)
	return command
}

func (c *cli) pause() *cobra.Command {
	command := &cobra.Command{
		Use:   "pause NAME",
		Short: "Pause syncing until resume",
		Long: `Pause syncing until resume. Gateways keep their files and may restart; agents still report drift. For configsync/NAME, nothing is
applied, pruned or repaired.

The command writes an annotation, which Argo CD does not revert.`,
		Example: `  stoker pause line
  stoker resume line`,
		Args: cobra.ExactArgs(1),
	}
	c.requests(command, func(ctx context.Context, got *requester, args []string) error {
		return got.send(ctx, args[0], "is paused", func(ctx context.Context, p target) (request.Answer, error) {
			return p.setter().Pause(ctx, p.namespace, p.name, true)
		})
	})
	return command
}

func (c *cli) resume() *cobra.Command {
	command := &cobra.Command{
		Use:     "resume NAME",
		Short:   "Resume syncing after pause",
		Example: `  stoker resume line`,
		Args:    cobra.ExactArgs(1),
	}
	c.requests(command, func(ctx context.Context, got *requester, args []string) error {
		return got.send(ctx, args[0], "is not paused", func(ctx context.Context, p target) (request.Answer, error) {
			answer, err := p.setter().Pause(ctx, p.namespace, p.name, false)
			if err == nil && paused(answer.Object) {
				return answer, errors.New("spec.paused is true: set it to false where the manifest is kept; these commands never write the spec")
			}
			return answer, err
		})
	})
	return command
}

// paused reports whether the spec of an object says so.
func paused(o v1alpha1.Requestable) bool {
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		return o.Spec.Paused
	case *v1alpha1.ConfigSync:
		return o.Spec.Paused
	}
	return false
}

// send carries out a request, prints the answer, and waits if the flags say so.
func (a *requester) send(ctx context.Context, arg, done string, ask func(context.Context, target) (request.Answer, error)) error {
	p, err := a.connect()
	if err != nil {
		return err
	}
	if p, err = p.of(arg); err != nil {
		return err
	}
	if a.role != "" {
		p.role = a.role
	}
	var answer request.Answer
	if err := p.retry(ctx, func(ctx context.Context) (err error) {
		answer, err = ask(ctx, p)
		return err
	}); err != nil {
		return p.explainWrite(p.name, err)
	}
	if answer.Outcome == request.Superseded {
		return exitErrorf(exitSuperseded, "%s", answer.Message)
	}
	d, err := v1alpha1.DesiredRef(answer.Object, "")
	if err != nil && answer.Ref != "" {
		return err
	}
	if answer.Ref != "" && d.Ref != answer.Ref {
		return exitErrorf(exitSuperseded, "superseded: %s; the desired ref is %s by now", answer.Message, d.Ref)
	}
	full := resourceName(answer.Object)
	if err := a.print(*a.output, result{
		table: func(w io.Writer) {
			line := full + " " + done
			if answer.Outcome == request.Unchanged && answer.Message != "" && done == rollbackRequested {
				line = full + " unchanged (" + answer.Message + ")"
			} else if answer.Message != "" {
				line += " (" + answer.Message + ")"
			} else if answer.Outcome == request.Unchanged {
				line += " (no change)"
			}
			fmt.Fprintln(w, clean(line))
		},
		data:  bareObject(answer.Object),
		names: []string{full},
	}); err != nil || !a.wait {
		return err
	}
	v, err := a.await(ctx, p, answer.Ref, a.commit, a.waitFlags)
	if err == nil && *a.output == asTable { // the other formats print one object only
		fmt.Fprintln(a.stdout, clean(v.Message))
	}
	return err
}
