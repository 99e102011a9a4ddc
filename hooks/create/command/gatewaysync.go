package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/create"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/secret"
)

// gatewaySyncFlags holds the flags of create gatewaysync.
type gatewaySyncFlags struct {
	applyFlags
	repo, dir, ref, app string
	secrets             map[string]string
}

func newGatewaySyncCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "gatewaysync NAME",
		Short: "Create a GatewaySync from the folders of a repository",
		Long: `Create a GatewaySync from the folders of a repository.

The command finds projects, configuration and what gateways share in a commit, of which it fetches the folders and a few files. Each kind
of gateway gets a profile, or a template if folders have the names of gateways. Comments name the annotations of the pods. Stderr has
what was found and left out, and warnings.

With --dir it reads a local clone, or one folder of it, without uncommitted changes, and the address is that of origin.

Credentials are files, as for preflight. The key of a Secret says what it is: ca.crt, known_hosts, or else a token, an ssh key or the
key of a GitHub App. With --apply, the command also creates these Secrets.`,
		Example: `  # print it, and check it
  stoker create gatewaysync plants --dir . > gatewaysync.yaml
  stoker preflight -f gatewaysync.yaml --secret git-credentials/token=token.txt

  # a private repository without a clone; create the Secret, too
  stoker create gatewaysync plants --repo "$REPOSITORY" --secret git-credentials/token=token.txt --apply`,
		Args: cobra.ExactArgs(1),
	}
	x := &gatewaySyncFlags{}
	f := command.Flags()
	f.StringVar(&x.repo, "repo", "", "address of the repository")
	f.StringVar(&x.dir, "dir", "", "local clone, or a folder of one, to read")
	f.StringVar(&x.ref, "ref", "", "branch, tag or commit (default: the branch of HEAD)")
	f.StringToStringVar(&x.secrets, "secret", nil, "file with one key of a Secret, NAME/KEY=FILE (repeatable)")
	f.StringVar(&x.app, "github-app", "", "GitHub App and its installation, APP_ID/INSTALLATION_ID")
	x.add(command)
	command.RunE = func(command *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(command.Context(), treeTimeout)
		defer cancel()
		return env.createGatewaySync(ctx, args[0], x)
	}
	return command
}

func (env *Env) createGatewaySync(ctx context.Context, name string, x *gatewaySyncFlags) (err error) {
	if err := x.check(name); err != nil {
		return err
	}
	in := create.Input{Name: name, Namespace: env.Namespace()}
	source, err := x.open(ctx, &in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.close()) }()
	in.Source = source
	result, err := create.GatewaySync(in)
	if err != nil {
		return err
	}
	env.printFound(result, source)
	env.printNext(result, x, in.Namespace)
	if !x.apply {
		_, err := env.Stdout.Write(result.YAML)
		return err
	}
	if in.RepoNote != "" {
		return exit.Errorf(exit.Usage, "the address of the repository is not known: name it with --repo")
	}
	secrets, err := x.secretObjects(result.GatewaySync.Spec.Git.Auth)
	if err != nil {
		return err
	}
	for _, s := range secrets {
		if err := env.applySecret(ctx, s, false); err != nil {
			return err
		}
	}
	p, err := env.Connect()
	if err != nil {
		return err
	}
	return p.applyGatewaySync(ctx, env, result.GatewaySync)
}

// secretObjects returns the Secrets whose keys --secret names, with the content of the files, which the command create secret checks, too.
func (x *gatewaySyncFlags) secretObjects(auth *v1alpha1.Credential) ([]*corev1.Secret, error) {
	var list []*corev1.Secret
	for _, id := range slices.Sorted(maps.Keys(x.secrets)) { // so that the keys of a Secret follow each other
		name, key, _ := strings.Cut(id, "/") // open has checked it
		data := func(value secret.String) (map[string][]byte, error) {
			return map[string][]byte{key: []byte(value.Reveal() + "\n")}, nil // keys of hosts, or certificates
		}
		switch ref := (v1alpha1.SecretKeyRef{Name: name, Key: key}); {
		case auth == nil:
		case auth.Token != nil && auth.Token.SecretRef == ref:
			data = create.TokenData
		case auth.GitHubApp != nil && auth.GitHubApp.PrivateKeySecretRef == ref:
			data = create.AppData
		case auth.SSHKey != nil && auth.SSHKey.SecretRef == ref:
			data = func(value secret.String) (map[string][]byte, error) { return create.SSHData(value, "") }
		}
		values, err := fromFile("--secret "+id, x.secrets[id], data)
		if err != nil {
			return nil, err
		}
		if n := len(list); n == 0 || list[n-1].Name != name {
			list = append(list, create.Secret(name, "", map[string][]byte{}))
		}
		for _, value := range values { // there is one value; --secret names its key
			list[len(list)-1].Data[key] = value
		}
	}
	return list, nil
}

// check validates the name and the flags, and removes the user of an https address, which may be a token.
func (x *gatewaySyncFlags) check(name string) error {
	switch problems := validation.IsDNS1123Subdomain(name); {
	case len(problems) > 0 || len(name) > 48:
		return exit.Errorf(exit.Usage, "%.80q cannot be the name of a GatewaySync: use lower-case letters, digits and -, at most 48", name)
	case x.repo == "" && x.dir == "":
		return exit.Errorf(exit.Usage, "name a repository with --repo URL, or a local clone with --dir .")
	case x.ref != "" && syntax.SpecRefProblem(x.ref) != "":
		return exit.Errorf(exit.Usage, "--ref %.80q %s", x.ref, syntax.SpecRefProblem(x.ref))
	}
	if x.repo != "" {
		if _, err := repo.ParseURL(x.repo); err != nil {
			return exit.Errorf(exit.Usage, "--repo: %w", err)
		}
		clean, hasPassword := withoutLogin(x.repo)
		if hasPassword {
			return exit.Errorf(exit.Usage, "--repo has a password, which all readers of the GatewaySync could read: put it into a file, and name the file with --secret git-credentials/token=FILE")
		}
		x.repo = clean
	}
	return nil
}

// Bounds of what is printed about a tree.
const (
	maxLeftOut  = 8 // paths that no gateway gets
	maxWarnings = 20
	maxPods     = 20 // profiles
)

func (env *Env) printFound(r *create.Result, source *treeSource) {
	fmt.Fprintf(env.Stderr, "%s:\n", output.Clean(source.label))
	var rows [][]string
	for _, f := range r.Found {
		rows = append(rows, []string{f.Source, f.Content})
	}
	output.WriteTable(env.Stderr, []string{"FOLDER", "CONTENT"}, rows)
	if len(r.LeftOut) > 0 {
		fmt.Fprintf(env.Stderr, "left out: %s\n", output.OneLine(plan.Enumerate(r.LeftOut, maxLeftOut)))
	}
	for i, w := range r.Warnings {
		if i == maxWarnings {
			fmt.Fprintf(env.Stderr, "warning: and %d more\n", len(r.Warnings)-i)
			break
		}
		fmt.Fprintln(env.Stderr, "warning: "+output.OneLine(w))
	}
}

// printNext prints what to do next. namespace is that of --namespace, or "".
func (env *Env) printNext(r *create.Result, x *gatewaySyncFlags, namespace string) {
	gs, flags := r.GatewaySync, ""
	if namespace != "" {
		flags = " --namespace " + namespace
	}
	commands := []string{"stoker preflight -f FILE"}
	if x.apply {
		commands = nil
	}
	if a := gs.Spec.Git.Auth; a != nil && (!x.apply || len(x.secrets) == 0) {
		switch {
		case a.Token != nil:
			commands = append(commands, "stoker create secret git "+a.Token.SecretRef.Name+" --token-file FILE --apply"+flags)
		case a.SSHKey != nil:
			commands = append(commands, "stoker create secret git "+a.SSHKey.SecretRef.Name+" --ssh-key-file FILE --repo "+gs.Spec.Git.Repo+" --apply"+flags)
		case a.GitHubApp != nil:
			commands = append(commands, "stoker create secret git "+a.GitHubApp.PrivateKeySecretRef.Name+" --github-app-key-file FILE --apply"+flags)
		}
	}
	if api := gs.Spec.Gateway.API; api.SecretName != "" {
		commands = append(commands, "stoker create secret api-key "+api.SecretName+" --key-file FILE --apply"+flags)
	}
	if x.apply {
		for i, p := range r.Pods {
			if i == maxPods {
				commands = append(commands, fmt.Sprintf("and %d more profiles: print the GatewaySync without --apply", len(r.Pods)-i))
				break
			}
			commands = append(commands, "annotate the pods of profile "+p.Profile+": "+strings.Join(p.Annotations, ", "))
		}
		commands = append(commands, "kubectl get gatewaysync "+gs.Name+" --watch"+flags)
	}
	fmt.Fprintf(env.Stderr, "next:\n  %s\n", output.Clean(strings.Join(commands, "\n  ")))
}
