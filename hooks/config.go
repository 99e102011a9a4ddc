package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/hooks/configsync"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/hooks/configsync/plan"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/kube"
)

// config is the command with the verbs of ConfigSyncs.
func (c *cli) config() *cobra.Command {
	command := &cobra.Command{
		Use:   "config",
		Short: "Apply objects of Kubernetes from git",
		Long: `Apply objects of Kubernetes from git.

A ConfigSync says which objects of which commit belong to a namespace. These commands render, compare and apply them with the
rights of their caller: in a shell, a CI job, a CronJob or a hook of Argo CD. Only the command run watches ConfigSyncs.`,
		Example: `  stoker config diff plant
  stoker config apply plant
  stoker config status plant`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	for _, verb := range []*cobra.Command{c.configRender(), c.configDiff(), c.configApply(), c.configPrune(), c.configStatus(), c.configRun()} {
		verb.Args = counts(verb.Args)
		command.AddCommand(verb)
	}
	return command
}

// configFlags are those of the verbs that read a commit.
type configFlags struct {
	*cli
	file, ref   string
	showSecrets bool
	timeout     time.Duration
	form        *string

	once   sync.Once
	target target
	err    error
}

// connected returns the cluster. It is found once, and only if it is needed.
func (x *configFlags) connected() (target, error) {
	x.once.Do(func() { x.target, x.err = x.connect() })
	return x.target, x.err
}

func (x *configFlags) engine(dir string) *configsync.Engine {
	return &configsync.Engine{Dir: dir, Ref: x.ref, Connect: func() (kube.Clients, error) {
		p, err := x.connected()
		return p.Clients, err
	}}
}

// reads adds the flags that choose what is read.
func (x *configFlags) reads(command *cobra.Command) {
	f := command.Flags()
	f.StringVarP(&x.file, "filename", "f", "", "file with the ConfigSync; - is stdin (default: the ConfigSync of the cluster)")
	f.StringVar(&x.ref, "ref", "", "branch, tag or commit instead of the one of the spec")
}

// run sets up a verb: its time limit, its output format, and the exit codes of its errors.
func (x *configFlags) run(command *cobra.Command, do func(ctx context.Context, args []string) error) {
	command.Flags().DurationVar(&x.timeout, "timeout", 15*time.Minute, "maximum duration of the whole run")
	command.RunE = func(command *cobra.Command, args []string) error {
		if x.timeout <= 0 {
			return outcome(exitUsage, "--timeout must be positive")
		}
		ctx, cancel := context.WithTimeout(command.Context(), x.timeout)
		defer cancel()
		return coded(withHelp(do(ctx, args)))
	}
	x.form = outputs(command)
}

// coded gives an error with a reason its exit code.
func coded(err error) error {
	reason := failure.Reason(err, "")
	_, has := errors.AsType[*outcomeError](err)
	switch {
	case err == nil, has:
		return err
	case errors.Is(err, configsync.ErrConcurrentChange):
		return &outcomeError{exitAgain, err}
	case reason == "":
		return err
	case reason == v1alpha1.ReasonApplyForbidden, reason == v1alpha1.ReasonRefNotAllowed:
		return &outcomeError{exitForbidden, err}
	case reason == v1alpha1.ReasonProgressDeadlineExceeded:
		return &outcomeError{exitTimeout, err}
	case reason == v1alpha1.ReasonPaused, reason.Class() == v1alpha1.ClassHeld:
		return &outcomeError{exitHeld, err}
	case reason != v1alpha1.ReasonUnhealthy && (reason.Class() == v1alpha1.ClassRetry || reason.Class() == v1alpha1.ClassWorking):
		return &outcomeError{exitAgain, err}
	}
	return err
}

// isDir reports whether an argument is a directory and not the name of a ConfigSync, which has no slash.
func isDir(arg string) bool { return arg == "." || arg == ".." || strings.Contains(arg, "/") }

// named splits the arguments of render and diff.
func (x *configFlags) named(args []string) (name, dir string, err error) {
	for _, arg := range args {
		switch {
		case isDir(arg) && dir == "":
			dir = arg
		case !isDir(arg) && name == "":
			name = arg
		default:
			return "", "", outcome(exitUsage, "give one name and one directory at most; a directory has a slash, as in ./kubernetes")
		}
	}
	if dir != "" {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return "", "", outcome(exitUsage, "%s is not a directory of a local clone", dir)
		}
	}
	return name, dir, nil
}

// load returns the ConfigSync of the file or of the cluster. With only a directory it is one with defaults.
func (x *configFlags) load(ctx context.Context, name, dir string) (*v1alpha1.ConfigSync, error) {
	if x.file != "" {
		cs, err := x.decodeConfigSync(x.file)
		if err == nil && name != "" && cs.Name != name {
			err = outcome(exitUsage, "%s contains ConfigSync %s, not %s", x.file, cs.Name, name)
		}
		if err == nil && cs.Namespace == "" {
			cs.Namespace = x.namespaceOf()
		}
		return cs, err
	}
	if name == "" && dir != "" {
		return &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: x.namespaceOf()}}, nil
	}
	if name == "" {
		return nil, outcome(exitUsage, "missing the name of a ConfigSync, a file with -f FILE, or a directory such as ./kubernetes")
	}
	p, err := x.connected()
	if err != nil {
		return nil, err
	}
	return p.configSync(ctx, name)
}

// namespaceOf returns the namespace of the flags or of the kubeconfig, or default without one.
func (x *configFlags) namespaceOf() string {
	namespace, _, err := x.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil || namespace == "" {
		return metav1.NamespaceDefault
	}
	return namespace
}

// decodeConfigSync reads a ConfigSync from a file, or from stdin if name is "-".
func (c *cli) decodeConfigSync(name string) (*v1alpha1.ConfigSync, error) {
	var raw []byte
	var err error
	if name == "-" {
		raw, err = io.ReadAll(io.LimitReader(c.in, maxManifest+1))
	} else {
		raw, err = file.Read(name, maxManifest)
	}
	if err != nil {
		return nil, err
	}
	cs, err := decode.ConfigSync(raw)
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s: %w", name, err)
	}
	return cs, nil
}

// configSync reads one ConfigSync.
func (p target) configSync(ctx context.Context, name string) (cs *v1alpha1.ConfigSync, err error) {
	err = p.retry(ctx, func(ctx context.Context) (err error) {
		cs, err = kube.ConfigSyncs(p.Dynamic, p.namespace).Get(ctx, name)
		return err
	})
	p.kind = kube.ConfigSync
	return cs, p.explain(name, err)
}

func (c *cli) configRender() *cobra.Command {
	command := &cobra.Command{
		Use:   "render [NAME] [DIR]",
		Short: "Show the objects of a commit",
		Long: `Show the objects of a commit.

The ConfigSync comes from the cluster, by its NAME, or from a file. DIR is a directory of a local clone: it replaces the
repository and the path of the spec, and what is committed there at HEAD or --ref is rendered. With DIR alone the command
needs no cluster.

Values of Secrets are not shown, nor objects whose templates can use values of Secrets, unless --show-secrets is given.`,
		Example: `  # what is committed in this clone
  stoker config render ./kubernetes

  # the objects of a ConfigSync, as YAML for other tools
  stoker config render plant -o yaml`,
		Args: cobra.MaximumNArgs(2),
	}
	x := &configFlags{cli: c}
	x.reads(command)
	command.Flags().BoolVar(&x.showSecrets, "show-secrets", false, "show the values of Secrets, and objects that may hold some")
	x.run(command, func(ctx context.Context, args []string) error {
		_, rendered, err := x.renders(ctx, args)
		if err != nil {
			return err
		}
		return x.print(*x.form, x.shown(rendered.Objects))
	})
	return command
}

// renders returns the ConfigSync of the arguments and its objects.
func (x *configFlags) renders(ctx context.Context, args []string) (*v1alpha1.ConfigSync, *configsync.Rendered, error) {
	name, dir, err := x.named(args)
	if err != nil {
		return nil, nil, err
	}
	cs, err := x.load(ctx, name, dir)
	if err != nil {
		return nil, nil, err
	}
	rendered, err := x.engine(dir).Render(ctx, cs)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(x.talk, "%s of %s at %.7s\n", counted(len(rendered.Objects), "object"), oneLine(rendered.Ref), rendered.Commit)
	return cs, rendered, nil
}

// shown returns objects for printing.
func (x *configFlags) shown(list []manifest.Object) result {
	items := []any{}
	r := result{}
	var lines [][]string
	for _, o := range list {
		id := o.ID()
		lines = append(lines, []string{id.Type(), id.Namespace, id.Name, o.File})
		r.names = append(r.names, id.Type()+"/"+id.Name)
		switch {
		case x.showSecrets || !o.Confidential():
			items = append(items, o.Object)
		case id.IsSecret() && !o.Tainted:
			items = append(items, redacted(o))
		default:
			fmt.Fprintf(x.talk, "warning: %s is not shown, because it may hold values of Secrets; use --show-secrets\n", clean(id.String()))
		}
	}
	r.data = map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	r.table = func(w io.Writer) { rows(w, []string{"TYPE", "NAMESPACE", "NAME", "FILE"}, lines) }
	return r
}

// redacted returns a Secret without its values.
func redacted(o manifest.Object) map[string]any {
	shown := map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": o.GetName()}}
	if o.GetNamespace() != "" {
		shown["metadata"].(map[string]any)["namespace"] = o.GetNamespace()
	}
	for _, field := range []string{"data", "stringData"} {
		if data, ok := o.Object[field].(map[string]any); ok {
			keys := map[string]any{}
			for key := range data {
				keys[key] = "REDACTED"
			}
			shown[field] = keys
		}
	}
	return shown
}

func (c *cli) configDiff() *cobra.Command {
	command := &cobra.Command{
		Use:   "diff [NAME] [DIR]",
		Short: "Show what a run would change in the cluster",
		Long: `Show what a run would change in the cluster.

The command renders as the command render does, reads the live objects, and dry-runs those that are not as git has them. It
prints the fields that would change, never their values. It changes nothing, and needs the rights of a run, because API
servers check them in dry runs. The exit code is 6 if a run would be held, and 1 or 5 if the API server refuses an object.`,
		Example: `  stoker config diff plant

  # before a push: what the commit of this clone would change
  stoker config diff plant ./kubernetes`,
		Args: cobra.MaximumNArgs(2),
	}
	x := &configFlags{cli: c}
	x.reads(command)
	x.run(command, func(ctx context.Context, args []string) error {
		cs, rendered, err := x.renders(ctx, args)
		if err != nil {
			return err
		}
		if cs.Name == "" {
			return outcome(exitUsage, "missing the name of a ConfigSync, or a file with -f FILE: a diff needs to know what it owns")
		}
		if cs.UID == "" { // from a file: what the cluster has of it counts
			p, err := x.connected()
			if err != nil {
				return err
			}
			switch live, err := kube.ConfigSyncs(p.Dynamic, cs.Namespace).Get(ctx, cs.Name); {
			case err == nil:
				cs.Status = live.Status
			case !apierrors.IsNotFound(err): // without the inventory, the diff would not show what a run deletes
				return p.explain(cs.Name, err)
			}
		}
		r, err := x.engine("").Prepare(ctx, cs, rendered)
		if err != nil {
			return err
		}
		if err := x.print(*x.form, planned(r.Plan)); err != nil {
			return err
		}
		return r.Plan.Problem(cs.ConfirmsDeletion(rendered.Commit))
	})
	return command
}

// plannedObject is an object of a plan in JSON output.
type plannedObject struct {
	Action    plan.Action     `json:"action"`
	Type      string          `json:"type"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	File      string          `json:"file,omitempty"`
	Fields    []string        `json:"fields,omitempty"`
	Reason    v1alpha1.Reason `json:"reason,omitempty"`
	Message   string          `json:"message,omitempty"`
}

// planned returns a plan for printing.
func planned(p *plan.Plan) result {
	list := []plannedObject{}
	r := result{table: func(w io.Writer) { fmt.Fprint(w, clean(p.String())) }}
	for _, items := range [][]plan.Item{p.Items, p.Removals} {
		for _, i := range items {
			list = append(list, plannedObject{i.Action, i.Type(), i.Namespace, i.Name, i.File, i.Fields, i.Reason, i.Message})
			if i.Action != plan.Unchanged {
				r.names = append(r.names, i.Type()+"/"+i.Name)
			}
		}
	}
	r.data = map[string]any{"ref": p.Ref, "commit": p.Commit, "summary": p.Summary(), "objects": list}
	return r
}
