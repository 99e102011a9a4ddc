package config

import (
	"context"
	"fmt"
	"maps"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/kube"
)

func newRenderCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "render [NAME] [DIR]",
		Short: "Show the objects of a commit",
		Long: `Show the objects of a commit.

The ConfigSync comes from the cluster, by its NAME, or from a file. DIR is a directory of a local clone: it replaces the
repository and the path of the spec, at HEAD or --ref. With DIR alone the command needs no cluster.

Values of Secrets, and objects whose templates can use them, are shown only with --show-secrets.`,
		Example: `  # what is committed in this clone
  stoker config render ./kubernetes

  # the objects of a ConfigSync, as YAML for other tools
  stoker config render plant -o yaml`,
		Args: cobra.MaximumNArgs(2),
	}
	x := &flags{env: env}
	x.addSourceFlags(command)
	command.Flags().BoolVar(&x.showSecrets, "show-secrets", false, "show the values of Secrets, and objects that may hold some")
	x.setRun(command, func(ctx context.Context, args []string) error {
		_, rendered, err := x.renderObjects(ctx, args, false)
		if err != nil {
			return err
		}
		list, withoutValues, hidden := display.Objects(rendered.Objects, x.showSecrets)
		for _, id := range withoutValues {
			if *x.output == output.YAML || *x.output == output.JSON {
				fmt.Fprintf(x.env.Stderr, "warning: %s is shown without its values, and cannot be applied; use --show-secrets\n", output.Clean(id.String()))
			}
		}
		for _, id := range hidden {
			fmt.Fprintf(x.env.Stderr, "warning: %s is not shown, because it may hold values of Secrets; use --show-secrets\n", output.Clean(id.String()))
		}
		return list.Print(x.env.Stdout, *x.output)
	})
	return command
}

// renderObjects returns the ConfigSync of the arguments, and its objects at the commit of the flags. With live, a ConfigSync of a file is as
// after it is applied: it has the requests and the status of the one in the cluster.
func (x *flags) renderObjects(ctx context.Context, args []string, live bool) (*v1alpha1.ConfigSync, *configsync.Rendered, error) {
	name, dir, err := splitArgs(args)
	if err != nil {
		return nil, nil, err
	}
	cs, err := x.load(ctx, name, dir)
	if err == nil && live && x.file != "" && cs.Name != "" {
		cs, err = x.applied(ctx, cs)
	}
	if err != nil {
		return nil, nil, err
	}
	rendered, err := x.engine(dir).Render(ctx, cs)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(x.env.Stderr, "%s of %s at %.7s\n", output.Count(len(rendered.Objects), "object"), output.OneLine(rendered.Ref), rendered.Commit)
	return cs, rendered, nil
}

// applied returns the ConfigSync of a file as it is in the cluster after it is applied. A status in the file is of the past.
func (x *flags) applied(ctx context.Context, of *v1alpha1.ConfigSync) (*v1alpha1.ConfigSync, error) {
	p, err := x.connected()
	if err != nil {
		return nil, err
	}
	syncs := kube.ConfigSyncs(p.Dynamic, of.Namespace)
	cs, err := syncs.Get(ctx, of.Name)
	spec := of.Spec
	switch {
	case apierrors.IsNotFound(err):
		cs = &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name}}
	case err != nil: // without the inventory, the diff would not show what a run deletes
		return nil, p.Explain(of.Name, err)
	default:
		// A dry-run update adds the defaults of the API server. If the user may not update the ConfigSync, the defaults are missing, so the
		// spec may count as changed.
		withDefaults := func(spec v1alpha1.ConfigSyncSpec) v1alpha1.ConfigSyncSpec {
			next := cs.DeepCopy()
			next.Spec = spec
			if next, err := syncs.Update(ctx, next, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
				return next.Spec
			}
			return spec
		}
		if spec = withDefaults(spec); !equality.Semantic.DeepEqual(withDefaults(cs.Spec), spec) {
			cs.Generation++
		}
	}
	cs.Spec = spec
	if cs.Annotations == nil {
		cs.Annotations = map[string]string{}
	}
	maps.Copy(cs.Annotations, of.Annotations)
	return cs, nil
}

func newDiffCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "diff [NAME] [DIR]",
		Short: "Show what a run would change in the cluster",
		Long: `Show what a run would change in the cluster.

The command renders as the command render does, and dry-runs the objects that are not as git has them. It prints the fields that
would change, never their values. It changes nothing, and needs the rights of a run. The exit code is 6 if a run would be held,
and 1 or 5 if the API server refuses an object.`,
		Example: `  stoker config diff plant

  # before a push: what the commit of this clone would change
  stoker config diff plant ./kubernetes`,
		Args: cobra.MaximumNArgs(2),
	}
	x := &flags{env: env}
	x.addSourceFlags(command)
	x.setRun(command, func(ctx context.Context, args []string) error {
		cs, rendered, err := x.renderObjects(ctx, args, true)
		if err != nil {
			return err
		}
		if cs.Name == "" {
			return exit.Errorf(exit.Usage, "missing the name of a ConfigSync, or a file with -f FILE: a diff needs to know what it owns")
		}
		r, err := x.engine("").Prepare(ctx, cs, rendered)
		if err != nil {
			return err
		}
		if err := display.ConfigPlan(r.Plan).Print(x.env.Stdout, *x.output); err != nil {
			return err
		}
		return r.Plan.Problem(annotation.ConfirmsDeletion(cs.Annotations[v1alpha1.AnnotationConfirmDeletion], rendered.Commit))
	})
	return command
}
