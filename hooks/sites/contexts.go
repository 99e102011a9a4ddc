package sites

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/kube"
)

// Select returns the clusters of the contexts that a value of --contexts names, or the one of the flags of kubectl if it is "". A cluster that
// connect cannot find is among them, with the reason as its Err. If contexts is "", err is that reason, too. skipped has the contexts that the
// value all leaves out, because another one shows the same.
func Select(set *pflag.FlagSet, flags *genericclioptions.ConfigFlags, contexts string, allNamespaces bool,
	connect func(flags *genericclioptions.ConfigFlags, several bool) (kube.Clients, string, error)) (list []Site, skipped []string, err error) {
	site := func(flags *genericclioptions.ConfigFlags, context string, several bool) Site {
		clients, namespace, err := connect(flags, several)
		if allNamespaces {
			namespace = ""
		}
		return Site{context, namespace, clients, err}
	}
	config, err := flags.ToRawKubeConfigLoader().RawConfig()
	if contexts == "" { // without a kubeconfig, connect may find the API server of the pod
		only := site(flags, cmp.Or(*flags.Context, config.CurrentContext), false)
		return []Site{only}, nil, only.Err
	}
	if err == nil {
		err = checkFlags(set)
	}
	if err != nil {
		return nil, nil, err
	}
	names, skipped, err := chosen(config, contexts, allNamespaces || *flags.Namespace != "")
	for _, name := range names {
		list = append(list, site(flagsFor(flags, name), name, len(names) > 1))
	}
	return list, skipped, err
}

// oneCluster are the flags of kubectl that choose a cluster or credentials. With several contexts, a token would go to every cluster.
var oneCluster = []string{"context", "cluster", "user", "server", "proxy-url", "token", "certificate-authority", "client-certificate", "client-key", "insecure-skip-tls-verify", "tls-server-name"}

// checkFlags returns an error if a flag of kubectl contradicts --contexts.
func checkFlags(flags *pflag.FlagSet) error {
	for _, name := range oneCluster {
		if flags.Changed(name) {
			return fmt.Errorf("--contexts takes clusters and credentials from the kubeconfig: leave out --%s", name)
		}
	}
	return nil
}

// flagsFor returns the flags of kubectl for a context. The kubeconfig, the namespace, the timeout and the impersonation are those of base.
func flagsFor(base *genericclioptions.ConfigFlags, context string) *genericclioptions.ConfigFlags {
	f := genericclioptions.NewConfigFlags(true)
	f.CacheDir, f.Username, f.Password = nil, nil, nil
	f.Context, f.KubeConfig, f.Namespace, f.Timeout, f.WrapConfigFn = &context, base.KubeConfig, base.Namespace, base.Timeout, base.WrapConfigFn
	f.Impersonate, f.ImpersonateUID, f.ImpersonateGroup, f.ImpersonateUserExtra = base.Impersonate, base.ImpersonateUID, base.ImpersonateGroup, base.ImpersonateUserExtra
	return f
}

// Flags returns the flags with which a command that a user pastes into a shell finds the objects of a namespace. context is "" for the
// current one.
func Flags(namespace, context string) string {
	flags := " --namespace " + namespace
	switch {
	case context == "":
	case strings.Trim(context, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@-") == "":
		flags += " --context " + context
	default:
		flags += " --context '" + strings.ReplaceAll(output.OneLine(context), "'", `'\''`) + "'"
	}
	return flags
}

// allContexts is the value of --contexts that names every context of the kubeconfig.
const allContexts = "all"

// maxSites is the largest number of sites of one view.
const maxSites = 64

// chosen returns the contexts that a value of --contexts names: all, or a list with commas. same means that the same namespaces are read
// of every cluster, whatever a context says. For the value all, it skips each context that leads to the same namespace of the same cluster as
// another one: its gateways would count twice. It keeps the current context if that is one of them.
func chosen(config api.Config, value string, same bool) (names, skipped []string, err error) {
	if value != allContexts {
		for name := range strings.SplitSeq(value, ",") {
			switch name = strings.TrimSpace(name); {
			case config.Contexts[name] == nil:
				return nil, nil, fmt.Errorf("--contexts: the kubeconfig has no context %.80q: 'kubectl config get-contexts' lists them", name)
			case !slices.Contains(names, name):
				names = append(names, name)
			}
		}
		return names, nil, tooMany(names)
	}
	seen := map[string]bool{}
	add := func(name string) {
		c := config.Contexts[name]
		place := name // a context without a cluster is a site that does not answer
		if cluster := config.Clusters[c.Cluster]; cluster != nil {
			// A proxy may serve several clusters at one address, and tell them apart by the name in TLS.
			place = strings.Join([]string{cluster.Server, cluster.TLSServerName, cluster.ProxyURL}, " ")
		}
		if !same {
			place += " " + c.Namespace
		}
		if seen[place] {
			skipped = append(skipped, name)
			return
		}
		seen[place] = true
		names = append(names, name)
	}
	if config.Contexts[config.CurrentContext] != nil {
		add(config.CurrentContext)
	}
	for _, name := range slices.Sorted(maps.Keys(config.Contexts)) {
		if name != config.CurrentContext {
			add(name)
		}
	}
	if len(names) == 0 {
		return nil, nil, fmt.Errorf("--contexts: the kubeconfig has no context: set --kubeconfig or KUBECONFIG")
	}
	slices.Sort(names)
	return names, skipped, tooMany(names)
}

func tooMany(names []string) error {
	if len(names) > maxSites {
		return fmt.Errorf("--contexts: %d contexts are more than the %d of one view: name those that you want", len(names), maxSites)
	}
	return nil
}

// FindCluster returns an error if nothing names a cluster. Without it, client-go would connect to localhost:8080.
func FindCluster(loader clientcmd.ClientConfig, config *rest.Config, server string, env func(string) string) error {
	if config.Host != "http://localhost:8080" {
		return nil
	}
	if raw, err := loader.RawConfig(); err != nil || len(raw.Clusters) > 0 || server != "" {
		return nil //nolint:nilerr // an error would have occurred before
	}
	files := loader.ConfigAccess().GetLoadingPrecedence()
	missing := func(file string) bool {
		_, err := os.Stat(file)
		return errors.Is(err, fs.ErrNotExist)
	}
	name := strings.Join(files, " and ")
	switch {
	case env(clientcmd.RecommendedConfigPathEnvVar) == "":
		return fmt.Errorf("there is no kubeconfig at %s: set --kubeconfig or KUBECONFIG", name)
	case !slices.ContainsFunc(files, func(file string) bool { return !missing(file) }):
		return fmt.Errorf("KUBECONFIG names %s, which does not exist: correct it, or set --kubeconfig", name)
	}
	return fmt.Errorf("the kubeconfig %s names no cluster: set --kubeconfig or KUBECONFIG to another one", name)
}
