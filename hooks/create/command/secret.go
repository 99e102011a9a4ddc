package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/hooks/create"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/secret"
)

// maxSecret is the maximum size of a Secret in bytes.
const maxSecret = 1 << 20

// newSecretCommand returns the command with the subcommands that create Secrets.
func newSecretCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "secret",
		Short: "Create a Secret that a GatewaySync names",
		Long: `Create a Secret that a GatewaySync names.

Values come from files; webhook tokens are random. Without --apply, the Secret is printed.`,
		Example: `  stoker create secret webhook stoker-webhook --apply`,
		Args:    cobra.NoArgs,
		RunE:    func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(newGitSecretCommand(env), newWebhookSecretCommand(env), newAPIKeySecretCommand(env))
	return command
}

// setRun makes a command print or create the Secret that data returns. random means that its values are random: then an existing Secret
// with the same keys stays.
func (env *Env) setRun(command *cobra.Command, random bool, data func(context.Context) (map[string][]byte, error)) {
	var x applyFlags
	x.add(command)
	command.Args = cobra.ExactArgs(1)
	command.RunE = func(command *cobra.Command, args []string) error {
		name := args[0]
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return exit.Errorf(exit.Usage, "%.80q cannot be the name of a Secret: use lower-case letters, digits and -", name)
		}
		values, err := data(command.Context())
		if err != nil {
			return err
		}
		s := create.Secret(name, env.Namespace(), values)
		if x.apply {
			return env.applySecret(command.Context(), s, random)
		}
		text, err := create.SecretYAML(s)
		if err == nil {
			_, err = env.Stdout.Write(text)
		}
		return err
	}
}

// gitSecretFlags are the flags of "create secret git": names of files, and the address of the repository.
type gitSecretFlags struct{ token, key, hosts, repo, app string }

func newGitSecretCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "git NAME",
		Short: "Create a Secret with a credential for git",
		Long: `Create a Secret with a credential for git: a token, an ssh key, or the private key of a GitHub App.

For an ssh host whose keys are not built in, --repo asks the host for its key, shows the fingerprint, and adds the key if you confirm
it. The keys of the Secret are token, identity and known_hosts, or private-key.pem.`,
		Example: `  stoker create secret git git-credentials --token-file token.txt --apply
  stoker create secret git git-credentials --ssh-key-file identity --known-hosts-file known_hosts`,
	}
	var x gitSecretFlags
	f := command.Flags()
	f.StringVar(&x.token, "token-file", "", "file with a token")
	f.StringVar(&x.key, "ssh-key-file", "", "file with a private ssh key")
	f.StringVar(&x.hosts, "known-hosts-file", "", "file with the keys of the ssh host")
	f.StringVar(&x.repo, "repo", "", "ssh address of the repository")
	f.StringVar(&x.app, "github-app-key-file", "", "file with the key of a GitHub App")
	env.setRun(command, false, func(ctx context.Context) (map[string][]byte, error) { return env.gitSecret(ctx, x) })
	command.MarkFlagsOneRequired("token-file", "ssh-key-file", "github-app-key-file")
	command.MarkFlagsMutuallyExclusive("token-file", "ssh-key-file", "github-app-key-file")
	command.MarkFlagsMutuallyExclusive("known-hosts-file", "repo")
	return command
}

func (env *Env) gitSecret(ctx context.Context, x gitSecretFlags) (map[string][]byte, error) {
	if x.key == "" && (x.hosts != "" || x.repo != "") {
		return nil, exit.Errorf(exit.Usage, "--known-hosts-file and --repo are for an ssh key: name it with --ssh-key-file")
	}
	switch {
	case x.token != "":
		return fromFile("--token-file", x.token, create.TokenData)
	case x.app != "":
		return fromFile("--github-app-key-file", x.app, create.AppData)
	}
	return fromFile("--ssh-key-file", x.key, func(key secret.String) (map[string][]byte, error) {
		if err := repo.CheckSSHKey(key); err != nil { // before the host is asked
			return nil, err
		}
		hosts, err := env.hostKeys(ctx, x)
		if err != nil {
			return nil, err
		}
		return create.SSHData(key, hosts)
	})
}

// hostKeys returns the lines of known_hosts for the Secret, "" if the keys of the host are built in.
func (env *Env) hostKeys(ctx context.Context, x gitSecretFlags) (string, error) {
	if x.hosts != "" {
		lines, err := readSecret("--known-hosts-file", x.hosts)
		return lines.Reveal(), err
	}
	if x.repo == "" {
		return "", exit.Errorf(exit.Usage, "an ssh key needs the keys of its host: name the repository with --repo, or a file with --known-hosts-file")
	}
	u, err := repo.ParseURL(x.repo)
	if err != nil {
		return "", exit.Errorf(exit.Usage, "--repo: %w", err)
	}
	if u.HasBuiltInHostKey() {
		fmt.Fprintln(env.Stderr, "The keys of this host are built in, so the Secret needs none.")
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	key, err := repo.GetHostKey(ctx, u, repo.RemoteOptions{})
	if err != nil {
		return "", err
	}
	fmt.Fprintf(env.Stderr, "%s presents the host key %s (%s).\nCompare it with the fingerprint that the host's owner publishes.\n", u, key.Fingerprint, key.Type)
	if !env.Interactive {
		return "", fmt.Errorf("the host key was not confirmed, because there is no terminal: compare it, put this line into a file, and name it with --known-hosts-file: %s", key.Line)
	}
	fmt.Fprint(env.Stderr, "Put it into the Secret? [y/N] ")
	answer, err := bufio.NewReader(io.LimitReader(env.Stdin, 100)).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		return "", errors.New("the host key was not confirmed; nothing was created")
	}
	return key.Line, nil
}

func newWebhookSecretCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "webhook NAME",
		Short: "Create a Secret with a random token for webhooks",
		Long: `Create a Secret with a random token for webhooks.

Its key is token. With --apply, an existing Secret keeps its token.`,
		Example: `  stoker create secret webhook stoker-webhook --apply`,
	}
	env.setRun(command, true, func(context.Context) (map[string][]byte, error) { return create.WebhookData(), nil })
	return command
}

func newAPIKeySecretCommand(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "api-key NAME",
		Short: "Create a Secret with the API key of gateways",
		Long: `Create a Secret with the API key of gateways.

The file has the whole text that the gateway shows once, NAME:KEY. The key of the Secret is apiKey.`,
		Example: `  stoker create secret api-key gateway-api --key-file key.txt --apply`,
	}
	keyFile := command.Flags().String("key-file", "", "file with the API key, NAME:KEY")
	env.setRun(command, false, func(context.Context) (map[string][]byte, error) {
		return fromFile("--key-file", *keyFile, create.APIKeyData)
	})
	_ = command.MarkFlagRequired("key-file") // fails only if there is no such flag
	return command
}

// fromFile returns the data for the value in the file that a flag names.
func fromFile(flag, name string, data func(secret.String) (map[string][]byte, error)) (map[string][]byte, error) {
	value, err := readSecret(flag, name)
	if err != nil {
		return nil, err
	}
	values, err := data(value)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, name, err)
	}
	return values, nil
}

// readSecret reads the file that a flag names, without white space at its end. An error does not repeat the name if there is no such file:
// it may be the value.
func readSecret(flag, name string) (secret.String, error) {
	b, err := file.Read(name, maxSecret)
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return secret.String{}, exit.Errorf(exit.Usage, "%s must name a file with the value: %w", flag, pathErr.Err)
	}
	value := strings.TrimRight(string(b), " \t\r\n")
	switch {
	case err != nil:
		return secret.String{}, fmt.Errorf("%s %s has more than %d bytes", flag, name, maxSecret)
	case value == "":
		return secret.String{}, fmt.Errorf("%s %s is empty", flag, name)
	}
	return secret.New(value), nil
}
